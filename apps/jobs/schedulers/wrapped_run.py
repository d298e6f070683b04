"""Runs inside a job on another machine: the person's script, and beside it one process that sends its output.

`wrapping.py` puts this text into the script that the scheduler gets. Standard library only, Python 3.6 and later, and
nothing here may keep the job from running, slow it down or change how it ends.

    this process   the one the scheduler watches: passes signals on, waits, ends as the child has ended
    child          the person's script, by the interpreter of its first line
    sender         reads on in the output files every two seconds and posts what is new
    copiers        only where the output is a pipe and not a file: each passes it on and keeps a copy to send
"""

import contextlib
import fcntl
import http.client
import json
import os
import resource
import select
import shutil
import signal
import stat
import sys
import threading
import time
from urllib.parse import urlsplit

PERIOD_S = 2.0
LONGEST_WAIT_S = 60.0
POST_TIMEOUT_S = 10.0
FLUSH_S = 4.0  # after the child's end, for what is still to be sent
COPIERS_S = 2.0
POST_BYTES = 1024 * 1024
# A signal that was meant for the whole job has reached the sender, too, by then.
SEEN_WITHIN_S = 0.25

_NAMES = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "TSTP", "XCPU", "VTALRM", "PROF", "IO", "PWR")
FORWARDED = {getattr(signal, "SIG" + name) for name in _NAMES} | set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
WATCHED = FORWARDED | {signal.SIGCHLD}


class Stream:
    """One file that is sent. `sent` bytes of it are at the server; the next one is at `position` of the file.

    `file` is open, or None for one that may not be there yet and is looked for at `path` each time.
    """

    def __init__(self, name: str, path: str, position: int, shown_path: str, file: "int | None" = None) -> None:
        self.name, self.path, self.position, self.shown_path, self.file = name, path, position, shown_path, file
        self.sent = 0
        self.is_done = False

    def read(self, limit: int) -> bytes:
        if self.file is not None:
            return self.read_from(self.file, limit)
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            return self.read_from(file, limit)
        finally:
            os.close(file)

    def read_from(self, file: int, limit: int) -> bytes:
        if os.fstat(file).st_size < self.position:  # it was emptied
            self.position = 0
        return os.pread(file, limit, self.position)


class Output:
    """Where the child's stdout and stderr go, and what of them is sent."""

    def __init__(self, folder: str, limit: int) -> None:
        self.streams = []  # type: list[Stream]
        self.copied = []  # type: list[tuple[list[int], str]]
        self.limit = limit
        out, err = _status(1), _status(2)
        is_one = out is not None and err is not None and os.path.samestat(out, err) and not stat.S_ISCHR(out.st_mode)
        for number, name, found in ((1, "stdout", out), (2, "stderr", err)):
            if found is None or (number == 2 and is_one):
                continue
            if not stat.S_ISREG(found.st_mode):
                spool = os.path.join(folder, name)
                self.streams.append(Stream(name, spool, 0, "the scheduler's own output"))
                self.copied.append(([1, 2] if number == 1 and is_one else [number], spool))
                continue
            appends = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND
            start = found.st_size if appends else os.lseek(number, 0, os.SEEK_CUR)
            path = "/proc/self/fd/%d" % number
            try:
                # Opened anew: reading here must not move the place where the job writes.
                file = os.open(path, os.O_RDONLY)
            except OSError:  # it may write there, and not read
                continue
            self.streams.append(Stream(name, path, start, os.readlink(path), file))

    def start_copiers(self, keep_out: "list[int]") -> "tuple[list[int], dict[int, int]]":
        """The copiers' pids, and for each of the child's descriptors the pipe it is to write to."""
        pids, pipes = [], {}  # type: list[int], dict[int, int]
        for numbers, spool in self.copied:
            source, end = os.pipe()
            pids.append(_fork(_copy, source, numbers[0], spool, self.limit, [end, *pipes.values(), *keep_out]))
            os.close(source)
            pipes.update(dict.fromkeys(numbers, end))
        return pids, pipes


class Server:
    def __init__(self, folder: str, url: str, token: str, restart: str) -> None:
        self.url = urlsplit(url)
        self.headers = {"Authorization": "Job " + token, "X-Restart": restart}
        self.headers["Content-Type"] = "application/octet-stream"
        self.context = None
        if self.url.scheme == "https":
            import ssl  # not everywhere, and not needed for http

            ca = os.path.join(folder, "ca.pem")
            self.context = ssl.create_default_context(cafile=ca if os.path.getsize(ca) else None)

    def post(self, stream: Stream, data: bytes, timeout_s: float) -> "tuple[int, int]":
        """The answer's status and the offset it names (or ours). Raises OSError or HTTPException."""
        host, port = self.url.hostname or "", self.url.port
        if self.context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self.context)
        try:
            path = "%s/api/v1/job-output/%s/" % (self.url.path.rstrip("/"), stream.name)
            connection.request("POST", path, data, dict(self.headers, **{"X-Offset": str(stream.sent)}))
            answer = connection.getresponse()
            answer.read(65536)
            named = answer.getheader("X-Offset") or ""
            return answer.status, int(named) if named.isdigit() else stream.sent
        finally:
            connection.close()


class Sender:
    """Posts what is new until `end` can be read. Errors only make it wait longer."""

    def __init__(self, server: Server, streams: "list[Stream]", end: int, limit: int, period_s: float) -> None:
        self.server, self.streams, self.end, self.limit, self.period_s = server, streams, end, limit, period_s
        self.is_refused = False

    def run(self) -> None:
        failures = 0
        while not self.is_refused:
            wait_s = min(LONGEST_WAIT_S, self.period_s * 2**failures)
            is_end = self.has_ended(wait_s)
            deadline = time.monotonic() + (FLUSH_S if is_end else 3600)
            try:
                for stream in self.streams:
                    self.send(stream, deadline, is_end)
                failures = 0
            except (OSError, ValueError, http.client.HTTPException):
                failures = min(failures + 1, 10)
            if is_end:
                return
        self.has_ended(None)

    def has_ended(self, wait_s: "float | None") -> bool:
        return bool(select.select([self.end], [], [], wait_s)[0])

    def send(self, stream: Stream, deadline: float, is_end: bool) -> None:
        """Post until there is nothing new. Raises OSError where it should be tried again later."""
        while not (stream.is_done or self.is_refused):
            left_s = deadline - time.monotonic()
            data = stream.read(min(POST_BYTES, max(1, self.limit - stream.sent)))
            if not data or left_s <= 0 or (not is_end and self.has_ended(0)):
                return
            is_over = stream.sent >= self.limit
            if is_over:
                data = ("\n[the log goes on in %s]\n" % stream.shown_path).encode("utf-8", "replace")
            if is_over and stream.name == "metrics":
                stream.is_done = True
                return
            status, offset = self.server.post(stream, data, min(POST_TIMEOUT_S, left_s))
            if status == 200:
                stream.position += len(data)
                stream.sent = offset
                stream.is_done = is_over
            elif status == 409 and offset != stream.sent:
                stream.position = max(0, stream.position + offset - stream.sent)
                stream.sent = offset
            elif status == 413:
                stream.is_done = True
            elif status == 401:  # the server knows that this attempt is over
                self.is_refused = True
            else:
                raise OSError("status %d" % status)


class Signals:
    """Passes signals on to the child, but for those that the scheduler has sent to all of the job's processes."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.seen_at = {}  # type: dict[int, float]

    def forward(self, number: int, child: int) -> None:
        if number == signal.SIGCONT or not self.was_sent_to_all(number):
            os.kill(child, number)

    def was_sent_to_all(self, number: int) -> bool:
        deadline = time.monotonic() + SEEN_WITHIN_S
        while True:
            if time.monotonic() - self.seen_at.pop(number, -9) < 2 * SEEN_WITHIN_S:
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.seen], [], [], left_s)[0]:
                return False
            data = os.read(self.seen, 100)
            if not data:  # nobody looks any more
                return False
            self.seen_at.update(dict.fromkeys(data, time.monotonic()))


def run(folder: str, is_locale_set: str, *arguments: str) -> None:
    with open(os.path.join(folder, "config"), encoding="ascii") as file:
        config = json.load(file)
    for name in ("config", "run.py"):
        os.unlink(os.path.join(folder, name))
    environment = dict(os.environb)
    if not is_locale_set:  # Python itself may have put it there
        environment.pop(b"LC_CTYPE", None)
    metrics = environment.get(b"SWITCHYARD_METRICS", b"")
    if not metrics:
        environment[b"SWITCHYARD_METRICS"] = metrics = os.fsencode(os.path.join(folder, "metrics.jsonl"))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)

    end, seen, sender, copiers, pipes = -1, -1, 0, [], {}  # type: int, int, int, list[int], dict[int, int]
    try:
        output = Output(folder, config["limit"])
        output.streams.reverse()  # the short one with the errors first
        path = os.path.abspath(os.fsdecode(metrics))
        start = os.path.getsize(path) if os.path.isfile(path) else 0
        output.streams.append(Stream("metrics", path, start, ""))
        server = Server(
            folder, config["url"], config["token"], os.environ.get("SLURM_RESTART_COUNT", "").strip() or "0"
        )
        end_source, end = os.pipe()
        seen, seen_end = os.pipe()
        sending = Sender(server, output.streams, end_source, config["limit"], config["period_s"])
        sender = _fork(_send, sending, seen_end, [end, seen])
        os.close(end_source)
        os.close(seen_end)
        copiers, pipes = output.start_copiers([end, seen])
    except Exception as error:  # whatever it is, the job runs
        if os.environ.get("SWITCHYARD_WRAPPER_DEBUG"):
            sys.stderr.write("switchyard: no live log: %r\n" % (error,))

    command = [*config["command"], os.path.join(folder, "script"), *arguments]
    child = _fork(_become, command, environment, pipes, before)
    for number in set(pipes.values()):
        os.close(number)
    signals = Signals(seen)
    status = None
    while status is None:
        number = signal.sigwaitinfo(WATCHED).si_signo
        if number != signal.SIGCHLD:
            if sender:
                signals.forward(number, child)
            else:
                os.kill(child, number)
        pid, found = os.waitpid(child, os.WNOHANG)
        status = found if pid else None

    for pid in copiers:
        _wait(pid, COPIERS_S)
    if sender:
        os.close(end)
        if not _wait(sender, FLUSH_S + 1):
            os.kill(sender, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    _end_like(status)


def _status(number: int) -> "os.stat_result | None":
    try:
        return os.fstat(number)
    except OSError:
        return None


def _fork(work: "object", *arguments: "object") -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work(*arguments)  # type: ignore[operator]
    finally:
        os._exit(127)


def _become(command: "list[str]", environment: "dict[bytes, bytes]", pipes: "dict[int, int]", mask: "object") -> None:
    for target, pipe in pipes.items():
        os.dup2(pipe, target)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python's own choices are not the job's
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # type: ignore[arg-type]
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        os.write(2, ("%s: %s\n" % (command[0], error.strerror)).encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _send(sending: Sender, seen: int, others: "list[int]") -> None:
    """The sender's process: one thread sends, and this one says which signals came, so that they are told apart."""
    for number in others:
        os.close(number)
    # Through the one who waits: ours are about to be closed, so that nobody waits for us to close them.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.set_blocking(seen, False)
    thread = threading.Thread(target=_send_to_the_end, args=(sending,), daemon=True)
    thread.start()
    while True:
        found = signal.sigwaitinfo(FORWARDED)
        with contextlib.suppress(OSError):
            os.write(seen, bytes([found.si_signo]))


def _send_to_the_end(sending: Sender) -> None:
    try:
        sending.run()
    finally:
        os._exit(0)


def _copy(source: int, target: int, spool: str, limit: int, others: "list[int]") -> None:
    for number in set(others):
        os.close(number)
    file = os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kept = 0
    while True:
        data = os.read(source, 65536)
        if not data:
            os._exit(0)
        _write(target, data)
        # One byte more than is sent, so that the sender sees that there was more.
        part = data[: limit + 1 - kept]
        try:
            kept += os.write(file, part) if part else 0
        except OSError:
            kept = limit + 1


def _write(target: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:
            select.select([], [target], [])


def _wait(pid: int, limit_s: float) -> bool:
    """Whether the process ended in time."""
    deadline = time.monotonic() + limit_s
    while True:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, min(left_s, 0.2))


def _end_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own, if it is to leave one
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:])

"""Jobs on other machines: their wrapped scripts run for real, by dash and bash, and post to the real server."""

from __future__ import annotations

import ast
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.inventory.models import Cluster
from apps.jobs import logstore
from apps.jobs.dispatch import submission_of
from apps.jobs.job_output import output_token
from apps.jobs.models import Job, JobAttempt
from apps.jobs.schedulers import wrapped_run
from apps.jobs.schedulers.wrapping import wrap
from apps.jobs.states import JobState
from tests.waiting import wait_until

BIN = "/usr/local/bin:/usr/bin:/bin"
# Which tool of those machines does the sending.
TOOLS = ["python", "curl"]
SHELLS = ["dash", "bash"]


def make_attempt(cast: Any, url: str, script: str = "#!/bin/bash\n", **values: Any) -> JobAttempt:
    cluster, _ = Cluster.objects.get_or_create(name="far", defaults={"scheduler": "slurm"})
    cluster.config = {"log_url": url}
    cluster.save()
    job = Job.objects.create(
        project=cast.project,
        cluster=cluster,
        submitted_by=cast.mina,
        name="far away",
        kind="test",
        script=script,
        state=JobState.RUNNING,
        attempt_count=1,
    )
    return JobAttempt.objects.create(
        job=job,
        cluster=cluster,
        number=1,
        token=f"sw-t-{job.pk}",
        external_id=str(job.pk),
        state=JobState.RUNNING,
        **values,
    )


@dataclass
class Ended:
    code: int
    out: bytes
    err: bytes
    seconds: float
    left: list[str] = field(default_factory=list)


@dataclass
class Node:
    """A machine of the cluster: a folder for temporary files and a PATH with or without python3."""

    root: Path
    shell: str
    tool: str

    def environment(self, **more: str) -> dict[str, str]:
        return {"PATH": str(self.root / "bin"), "TMPDIR": str(self.root / "tmp"), "LANG": "C", **more}

    def start(self, script: str, *, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        place = self.root / f"slurm_script-{time.monotonic_ns()}"
        place.write_bytes(script.encode())
        return subprocess.Popen([self.shell, str(place)], env=self.environment(**env or {}), cwd=self.root, **options)

    def run(self, script: str, *, env: dict[str, str] | None = None, timeout: float = 60) -> Ended:
        """As a scheduler runs it: each stream into a file of its own."""
        started = time.monotonic()
        with (self.root / "out").open("wb") as out, (self.root / "err").open("wb") as err:
            process = self.start(script, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            code = process.wait(timeout)
        seconds = time.monotonic() - started
        return Ended(code, (self.root / "out").read_bytes(), (self.root / "err").read_bytes(), seconds, self.left())

    def left(self) -> list[str]:
        return os.listdir(self.root / "tmp")


def make_node(root: Path, shell: str, tool: str) -> Node:
    (root / "bin").mkdir(parents=True)
    (root / "tmp").mkdir()
    hidden = {"python": set(), "curl": {"python"}, "none": {"python", "curl"}}[tool]
    for folder in ("/bin", "/usr/bin"):
        for name in os.listdir(folder):
            if not any(name.startswith(word) for word in hidden | {"pip"}) and not (root / "bin" / name).exists():
                (root / "bin" / name).symlink_to(f"{folder}/{name}")
    if tool == "python" and not (root / "bin/python3").exists():
        (root / "bin/python3").symlink_to(sys.executable)
    return Node(root, shell, tool)


# All four are tried by `make test-long`.
USUAL = ("dash", "python")


@pytest.fixture(
    params=[
        pytest.param((shell, tool), marks=[] if (shell, tool) == USUAL else pytest.mark.long, id=f"{shell}-{tool}")
        for shell in SHELLS
        for tool in TOOLS
    ]
)
def node(request, tmp_path) -> Node:
    return make_node(tmp_path, *request.param)


@pytest.fixture
def python_node(tmp_path) -> Node:
    return make_node(tmp_path, "dash", "python")


def wrapped(attempt: JobAttempt, script: str, **options: Any) -> str:
    url = attempt.cluster.config["log_url"]
    return wrap(script, url=url, token=output_token(attempt), **{"period_s": 1, **options})


def kept(attempt: JobAttempt, stream: str = "stdout") -> bytes:
    place = Path(logstore.paths_for(attempt).folder) / logstore.FILES[stream]
    return place.read_bytes() if place.exists() else b""


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_all_three_streams_come_and_the_scheduler_s_own_files_are_as_ever(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    metrics = '{"step": 1, "name": "loss", "value": 2.5}'
    ended = node.run(
        wrapped(attempt, f"#!/bin/bash\necho out\necho err >&2\necho '{metrics}' >> \"$SWITCHYARD_METRICS\"\nexit 7\n")
    )
    assert (ended.code, ended.out, ended.err) == (7, b"out\n", b"err\n")
    assert kept(attempt) == b"out\n"
    assert kept(attempt, "stderr") == b"err\n"
    assert kept(attempt, "metrics") == metrics.encode() + b"\n"
    assert ended.left == []
    attempt.refresh_from_db()
    assert attempt.stdout_path == f"{attempt.folder}/stdout.log"


def test_without_python_curl_sends_the_same(tmp_path, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    place = tmp_path / "slurm-77.out"
    place.write_bytes(b"an earlier run\n")
    script = "#!/bin/bash\necho out\necho '{}' >> $SWITCHYARD_METRICS\nexit 7\n"
    with place.open("ab") as file:
        process = make_node(tmp_path, "bash", "curl").start(wrapped(attempt, script), stdout=file, stderr=file)
        assert process.wait(30) == 7
    assert (kept(attempt), kept(attempt, "metrics")) == (b"out\n", b"{}\n")


def test_output_comes_while_the_job_runs(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    with (node.root / "out").open("wb") as out:
        process = node.start(wrapped(attempt, "#!/bin/sh\necho first\nread line\necho $line\n"), stdin=-1, stdout=out)
        wait_until(lambda: kept(attempt) == b"first\n")
        process.communicate(b"from outside\n", timeout=30)
    assert process.returncode == 0
    assert kept(attempt) == b"first\nfrom outside\n"


def test_a_pipe_is_passed_on_and_copied(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    process = node.start(
        wrapped(attempt, "#!/bin/bash\nseq 200000\necho err >&2\nexit 4\n"),
        stdin=subprocess.DEVNULL,
        stdout=-1,
        stderr=-1,
    )
    out, err = process.communicate(timeout=60)
    whole = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    assert (process.returncode, err) == (4, b"err\n")
    assert out == whole
    assert kept(attempt) == whole
    assert kept(attempt, "stderr") == b"err\n"
    assert node.left() == []


def test_both_streams_in_one_file_or_one_pipe_are_one_log(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    script = wrapped(attempt, "#!/bin/bash\necho a\necho b >&2\necho c\n")
    process = node.start(script, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT)
    assert process.communicate(timeout=30)[0] == b"a\nb\nc\n"
    assert (kept(attempt), kept(attempt, "stderr")) == (b"a\nb\nc\n", b"")
    other = make_attempt(cast, live_server.url)
    with (node.root / "slurm-77.out").open("ab") as file:
        node.start(wrapped(other, "#!/bin/bash\necho a\necho b >&2\n"), stdout=file, stderr=file).wait(30)
    assert (kept(other), kept(other, "stderr")) == (b"a\nb\n", b"")


@pytest.mark.parametrize("mode", ["ab", "r+b"])
def test_what_is_in_the_file_already_is_not_sent(node, cast, live_server, mode):
    attempt = make_attempt(cast, live_server.url)
    place = node.root / "slurm-77.out"
    place.write_bytes(b"an earlier run\n")
    with place.open(mode) as file:
        file.seek(0, os.SEEK_END)
        node.start(wrapped(attempt, "#!/bin/sh\necho this run\n"), stdout=file, stderr=file).wait(30)
    assert place.read_bytes() == b"an earlier run\nthis run\n"
    assert kept(attempt) == b"this run\n"


def test_five_mebibytes_come_whole(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    ended = node.run(wrapped(attempt, "#!/bin/sh\nhead -c 5242880 /dev/zero | tr '\\0' x\necho end\n"))
    assert len(ended.out) == 5242884
    assert kept(attempt) == ended.out


def test_after_its_limit_a_stream_says_where_it_goes_on(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    ended = node.run(wrapped(attempt, "#!/bin/sh\nseq 1000\nsleep 3\nseq 1000\n", limit_bytes=1000))
    assert kept(attempt) == ended.out[:1000] + f"\n[the log goes on in {node.root}/out]\n".encode()


def test_a_file_the_job_empties_goes_on(python_node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    script = f"#!/bin/bash\necho before, and long\nsleep 3\n: > {python_node.root}/log\necho after\nsleep 1\n"
    with (python_node.root / "log").open("ab") as log:
        python_node.start(wrapped(attempt, script), stdout=log).wait(30)
    assert kept(attempt) == b"before, and long\nafter\n"


def test_posts_of_a_job_s_second_start_go_to_its_own_attempt(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    script = wrapped(attempt, "#!/bin/sh\necho start $SLURM_RESTART_COUNT\n")
    node.run(script)
    # Not known yet: nothing is lost while the job runs.
    slow = wrapped(attempt, "#!/bin/sh\necho start $SLURM_RESTART_COUNT\nsleep 6\n")
    with (node.root / "out").open("wb") as out:
        process = node.start(slow, env={"SLURM_RESTART_COUNT": "1"}, stdout=out)
        time.sleep(1.5)
        second = JobAttempt.objects.create(
            job=attempt.job,
            cluster=attempt.cluster,
            number=2,
            token="sw-t-again",
            external_id=attempt.external_id,
            submitted_at=timezone.now(),
            restart_count=1,
            state=JobState.RUNNING,
        )
        JobAttempt.objects.filter(pk=attempt.pk).update(state=JobState.PREEMPTED)
        assert process.wait(30) == 0
    assert (kept(attempt), kept(second)) == (b"start\n", b"start 1\n")


# -- the script is what it was ----------------------------------------------------------------------------------------

STRANGE = 'it\'s "quoted" $(reboot) `id` ${HOME} \\ \\n ünïcode 🚀 \x01\x7f\x1b[31m'


def test_any_text_is_unpacked_as_it_was(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    body = f"{STRANGE}\nSWITCHYARD_END_OF_PART\nEOF\n@SCRIPT@\ntail without end"
    ended = node.run(wrapped(attempt, "#!/usr/bin/env -S cat --\n" + body))
    assert ended.out.decode() == "#!/usr/bin/env -S cat --\n" + body
    windows = "#!/bin/cat\r\nfoo\r\n"
    assert node.run(wrapped(attempt, "#!/bin/cat -- \n" + windows)).out == b"#!/bin/cat -- \n" + windows.encode()


def test_a_script_of_one_mebibyte(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    script = "#!/bin/bash\necho start\n" + "# é\n" * 200_000 + "echo end\n"
    assert node.run(wrapped(attempt, script)).out == b"start\nend\n"


def test_the_script_finds_the_environment_it_was_given(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    given = {"A": "1 2", "_swy_token": "mine", "PYTHONPATH": "/nonexistent", "PYTHONHOME": "/nonexistent"}
    ended = node.run(wrapped(attempt, "#!/usr/bin/env -S cat /proc/self/environ\n"), env=given)
    seen = dict(item.split("=", 1) for item in ended.out.split(b"#!")[0].decode().split("\0") if item)
    metrics = seen.pop("SWITCHYARD_METRICS")
    assert metrics.startswith(f"{node.root}/tmp/switchyard.")
    expected = node.environment(**given)
    added = {"PWD", "OLDPWD", "SHLVL", "_"}  # every shell's own
    # A name that the frame uses itself is the frame's where the shell runs on beside the script.
    assert {k: v for k, v in seen.items() if k not in added and k != "_swy_token"} == {
        k: v for k, v in expected.items() if k != "_swy_token"
    }
    assert output_token(attempt) not in seen.get("_swy_token", "")


def test_a_metrics_file_that_is_given_is_read_from_where_it_ends(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    place = node.root / "my metrics.jsonl"
    place.write_text('{"old": 1}\n')
    node.run(
        wrapped(attempt, '#!/bin/sh\necho \'{"new": 1}\' >> "$SWITCHYARD_METRICS"\n'),
        env={"SWITCHYARD_METRICS": str(place)},
    )
    assert kept(attempt, "metrics") == b'{"new": 1}\n'
    assert place.read_text() == '{"old": 1}\n{"new": 1}\n'


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("#!/bin/bash\nexit 137\n", 137),
        ("#!/bin/bash\nexec false\n", 1),
        ("#!/bin/bash\nexec >&- 2>&-\nexit 5\n", 5),
        ("#!/no/such/program\n", 127),
        ("#!/etc/passwd\n", 126),
        ("#!\nexit 3\n", 3),
        ("#! /bin/sh -e\nfalse\nexit 9\n", 1),
        ("#!/bin/bash\nsleep 300 &\nexit 0\n", 0),
    ],
    ids=["as-if-killed", "exec", "closes", "nothing", "no-program", "no-interpreter", "argument", "leaves-some"],
)
def test_it_ends_with_the_script_s_exit_code(node, cast, live_server, script, code):
    ended = node.run(wrapped(make_attempt(cast, live_server.url), script))
    assert ended.code == code
    assert ended.seconds < 10


# -- signals ----------------------------------------------------------------------------------------------------------

TRAPS = """#!/bin/bash
count=0
for name in TERM USR1 USR2 INT; do trap "echo got $name; count=\\$((count + 1))" $name; done
echo ready
while [ $count -lt WANTED ]; do read -t 0.1 <> <(:); done
sleep 1
echo "after $count"
exit 6
"""


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2", "INT"])
def test_a_signal_to_the_wrapper_reaches_the_script_once(node, cast, live_server, name):
    attempt = make_attempt(cast, live_server.url)
    with (node.root / "out").open("wb") as out:
        process = node.start(wrapped(attempt, TRAPS.replace("WANTED", "1")), stdout=out, start_new_session=True)
        wait_until(lambda: b"ready" in (node.root / "out").read_bytes())
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(30) == 6
    assert kept(attempt) == f"ready\ngot {name}\nafter 1\n".encode()


def test_a_signal_to_all_of_the_job_s_processes_reaches_the_script_once(python_node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    with (python_node.root / "out").open("wb") as out:
        process = python_node.start(wrapped(attempt, TRAPS.replace("WANTED", "2")), stdout=out, start_new_session=True)
        wait_until(lambda: b"ready" in (python_node.root / "out").read_bytes())
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGUSR1)
        assert process.wait(30) == 6
    assert kept(attempt) == b"ready\ngot TERM\ngot USR1\nafter 2\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGHUP])
def test_it_dies_of_the_signal_the_script_died_of(python_node, cast, live_server, number):
    attempt = make_attempt(cast, live_server.url)
    ended = python_node.run(wrapped(attempt, f"#!/bin/bash\necho last\nkill -{int(number)} $$\n"))
    assert ended.code == -number
    assert kept(attempt) == b"last\n"
    assert ended.left == []


@pytest.mark.parametrize("shell", SHELLS)
def test_without_python_a_signal_is_told_as_a_shell_tells_it(tmp_path, cast, live_server, shell):
    ended = make_node(tmp_path, shell, "curl").run(
        wrapped(make_attempt(cast, live_server.url), "#!/bin/bash\nkill -9 $$\n")
    )
    assert (ended.code, ended.err) == (137, b"")


def test_the_script_may_be_interrupted_as_ever(node, cast, live_server):
    """A shell's background processes are deaf to INT; the script is none, for all it can see."""
    ended = node.run(wrapped(make_attempt(cast, live_server.url), "#!/bin/bash\ngrep -i sig[ib] /proc/self/status\n"))
    masks = dict(line.split(":\t") for line in ended.out.decode().splitlines())
    ignored = int(masks["SigIgn"], 16)
    assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGQUIT - 1) | 1 << (signal.SIGPIPE - 1))
    assert int(masks["SigBlk"], 16) == 0


def test_killed_with_all_its_processes_what_was_sent_stays(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    with (node.root / "out").open("wb") as out:
        process = node.start(wrapped(attempt, "#!/bin/bash\necho one\nsleep 300\n"), stdout=out, start_new_session=True)
        wait_until(lambda: kept(attempt) == b"one\n")
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


# -- a server that is not well ----------------------------------------------------------------------------------------


@dataclass
class Sick:
    url: str
    requests: list[tuple[str, dict[str, str], bytes]]


@pytest.fixture
def sick_server() -> Iterator[Callable[..., Sick]]:
    servers = []

    def start(status: int | None) -> Sick:
        """Answers every post with `status`; None: takes it and says nothing."""
        requests: list[tuple[str, dict[str, str], bytes]] = []
        stop = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, dict(self.headers), body))
                if status is None:
                    stop.wait(60)
                    return
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append((server, stop))
        return Sick(f"http://127.0.0.1:{server.server_port}/behind/", requests)

    yield start
    for server, stop in servers:
        stop.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [500, 401, *(pytest.param(n, marks=pytest.mark.long) for n in (413, 404, 409, 302))])
def test_a_server_that_refuses_changes_nothing_for_the_job(node, sick_server, status):
    server = sick_server(status)
    script = "#!/bin/bash\nseq 3000\nsleep 2\necho end\nexit 2\n"
    ended = node.run(wrap(script, url=server.url, token="1:x", period_s=1))
    assert (ended.code, ended.out[-4:], ended.err, ended.left) == (2, b"end\n", b"", [])
    assert ended.seconds < 6
    path, headers, body = server.requests[0]
    assert path == "/behind/api/v1/job-output/stdout/"
    assert (headers["Authorization"], headers["X-Offset"], headers["X-Restart"]) == ("Job 1:x", "0", "0")
    assert body == ended.out[: len(body)]
    assert len(server.requests) <= 4


@pytest.mark.long
def test_a_server_that_hangs_costs_a_few_seconds_at_the_end(node, sick_server):
    script = "#!/bin/bash\nseq 3000\nsleep 2\nexit 2\n"
    ended = node.run(wrap(script, url=sick_server(None).url, token="1:x", period_s=1))
    assert ended.code == 2
    assert ended.seconds < 11
    assert ended.left == []


def test_a_server_that_is_down_costs_nothing(node):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        ended = node.run(wrap("#!/bin/bash\nseq 100000\nexit 2\n", url=url, token="1:x", period_s=1))
    assert (ended.code, ended.err, ended.left) == (2, b"", [])
    assert ended.seconds < 5


def test_a_server_that_comes_back_gets_all_of_it(python_node, cast, live_server, settings):
    """Both ends agree on the offset, whatever was lost between them."""
    attempt = make_attempt(cast, live_server.url)
    script = wrapped(attempt, "#!/bin/bash\necho one\nsleep 3\necho two\nsleep 3\n")
    with (python_node.root / "out").open("wb") as out:
        process = python_node.start(script, stdout=out)
        wait_until(lambda: kept(attempt) == b"one\n")
        shutil.rmtree(logstore.paths_for(attempt).folder)
        assert process.wait(30) == 0
    assert kept(attempt) == b"one\ntwo\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_without_python_and_curl_the_job_runs(tmp_path, shell):
    node = make_node(tmp_path, shell, "none")
    ended = node.run(wrap("#!/bin/bash\necho out\necho $SWITCHYARD_METRICS >&2\nexit 3\n", url="http://x", token="1:x"))
    assert (ended.code, ended.out, ended.left) == (3, b"out\n", [])
    assert ended.err.startswith(f"{tmp_path}/tmp/switchyard.".encode())


def test_no_room_to_unpack_is_said(tmp_path):
    node = make_node(tmp_path, "dash", "none")
    (tmp_path / "bin/mktemp").unlink()
    (tmp_path / "bin/mktemp").symlink_to("/bin/false")
    ended = node.run(wrap("#!/bin/bash\n", url="http://x", token="1:x"))
    assert ended.code == 126
    assert b"could not be unpacked" in ended.err


# -- the token --------------------------------------------------------------------------------------------------------


def test_the_token_is_to_be_seen_nowhere(node, cast, live_server):
    attempt = make_attempt(cast, live_server.url)
    # In a file, since what looks for it must not be found itself.
    (node.root / "needle").write_text(output_token(attempt).partition(":")[2])
    look = f"""#!/bin/bash
    echo looking
    for n in 1 2 3 4 5 6 7 8; do
      cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -aFf {node.root}/needle && echo SEEN
      grep -rlaFf {node.root}/needle "$TMPDIR" && echo SEEN
      sleep 0.4
    done
    env | grep -c swy_
    """
    ended = node.run(wrapped(attempt, look))
    assert ended.out == b"looking\n0\n"
    assert ended.err == b""
    assert kept(attempt) == ended.out


# -- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x",
        "x",
        "http://",
        "http://x/$(id)",
        "http://x/'",
        "http://x/a b",
        "http://x?q",
        "http://u:p@x",
        "http://x:0",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"it (must be|holds)"):
        wrap("#!/bin/sh\n", url=url, token="1:x")


@pytest.mark.parametrize(("token", "ca"), [("a b", ""), ("", ""), ("a'b", ""), ("1:x", "`id`"), ("1:x", "'\n'")])
def test_tokens_and_certificates_that_are_none_are_refused(token, ca):
    with pytest.raises(ValueError, match=r"token|certificates"):
        wrap("#!/bin/sh\n", url="http://x", token=token, ca=ca)


def test_the_sender_s_text_is_python_3_6():
    ast.parse(Path(wrapped_run.__file__).read_text("ascii"), feature_version=(3, 6))


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.6", "3.13"])
def test_the_sender_runs_on_old_and_new_python(tmp_path, cast, live_server, version):
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if not found:
        pytest.skip(f"there is no Python {version} here")
    node = make_node(tmp_path, "dash", "curl")
    (tmp_path / "bin/python3").symlink_to(found[0])
    attempt = make_attempt(cast, live_server.url)
    ended = node.run(wrapped(attempt, "#!/bin/bash\necho out\nkill -TERM $$\n"))
    assert (ended.code, kept(attempt)) == (-signal.SIGTERM, b"out\n")


# -- where it is wrapped in -------------------------------------------------------------------------------------------


def test_scripts_for_clusters_with_an_address_for_logs_are_wrapped(cast):
    script = "#!/bin/bash\necho hello\n"
    attempt = make_attempt(cast, "http://switchyard:8420", script)
    submitted = submission_of(attempt).script
    assert submitted.startswith("#!/bin/sh\n")
    assert output_token(attempt) in submitted
    attempt.cluster.config = {}
    assert submission_of(attempt).script == script
    attempt.cluster.config, attempt.cluster.scheduler = {"log_url": "http://switchyard:8420"}, "local"
    assert submission_of(attempt).script == script


def test_the_page_and_the_api_show_what_was_sent(python_node, cast, live_server, client):
    attempt = make_attempt(cast, live_server.url)
    line = '{"step": 1, "name": "loss", "value": 2.5}'
    python_node.run(
        wrapped(attempt, f"#!/bin/bash\necho hello from afar\necho '{line}' >> $SWITCHYARD_METRICS\necho oops >&2\n")
    )
    from apps.jobs.ingest import ingest_metrics, last_words

    ingest_metrics(attempt.pk)
    attempt.refresh_from_db()
    assert last_words(attempt) == "oops"
    client.force_login(cast.mina)
    page = client.get(f"/jobs/{attempt.job.public_id}/").content.decode()
    assert "hello from afar" in page
    assert "loss" in page
    log = client.get(f"/api/v1/jobs/{attempt.job.public_id}/log/", {"stream": "stderr"})
    assert log.status_code == 200, log.content
    assert b"oops" in b"".join(log.streaming_content if log.streaming else [log.content])

"""Starting, breaking and stopping the lab's Slurm. Needs root: its daemons run as users of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from lab.slurm import settings
from lab.slurm.settings import Layout

PACKAGES = (
    *("munge", "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client", "mariadb-server"),
    *("slurm-wlm-basic-plugins", "slurm-wlm-jwt-plugin", "slurm-wlm-mysql-plugin"),
)
# Below the range the kernel gives to outgoing connections, in which slurmds lose their ports to others.
FIRST_PORT, LAST_PORT, PORTS = 21817, 31000, 400
_FOLDERS = ("etc", "run", "log", "state", "spool", "db", "rest", "jobs", "dev", "munge")


class LabError(Exception):
    """The lab cannot be had here, or a part of it does not come up; the text says what to do."""


@dataclass
class SlurmLab:
    """One Slurm. `chroot`: a folder with another Debian, whose Slurm is meant; paths in `layout` are inside it."""

    layout: Layout
    chroot: Path | None = None

    # -- as a whole -----------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Bring up what is not up. Safe to repeat. Raises LabError."""
        if os.geteuid() != 0:
            raise LabError("The Slurm lab needs root, since its daemons and jobs run as users of their own: run it so.")
        self.install()
        self.layout = replace(self.layout, release=self._release())
        self._make_folders()
        self._write_settings()
        self._start_munged()
        self._start_database()
        self.start_slurmdbd()
        self.start_slurmctld()
        for name in self.layout.node_names:
            self.start_node(name)
        self.start_slurmrestd()
        self._make_accounts()
        self._wait("all nodes to be idle", lambda: self._nodes_up() >= self.layout.nodes, 60)

    def down(self) -> None:
        for name in ("slurmrestd", *(f"slurmd.{node}" for node in self.layout.node_names), "slurmctld", "slurmdbd"):
            self._end(name, wait_s=0.0 if name.startswith("slurmd.") else 10.0)
        self._end("mariadbd")
        self._end("munged")
        for process in self._strays():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def wipe(self) -> None:
        self.down()
        shutil.rmtree(self._outside(self.layout.root), ignore_errors=True)

    def install(self) -> None:
        """The packages, where they are missing and apt is there."""
        if self.chroot is not None or all(map(shutil.which, ("slurmctld", "slurmrestd", "mariadbd", "munged"))):
            return
        if shutil.which("apt-get") is None:
            raise LabError(f"Slurm is not installed and apt is not there to install it; needed: {', '.join(PACKAGES)}")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
            done = subprocess.run(["apt-get", *command], env=env, capture_output=True, text=True)
            if done.returncode != 0:
                raise LabError(f"apt-get {command[0]} failed: {done.stderr[-1000:]}")

    # -- its parts, to be killed and started by tests ---------------------------------------------------------------

    def start_slurmdbd(self) -> None:
        if not self.is_up("slurmdbd"):
            self._run(["slurmdbd"], user="slurm")
            self._wait("slurmdbd", lambda: _answers(self.layout.port + 2), 30)

    def start_slurmctld(self) -> None:
        """After slurmdbd: a first start without it ends at once."""
        if not self.is_up("slurmctld"):
            self._run(["slurmctld"])
            self._wait("slurmctld", lambda: self.try_run(["sinfo", "-h"]).returncode == 0, 30)

    def start_node(self, name: str) -> None:
        if not self.is_up(f"slurmd.{name}"):
            self._run(["slurmd", "-N", name])

    def start_slurmrestd(self) -> None:
        """SLURM_JWT=daemon makes it pass on the caller's own token. It refuses to run as root or SlurmUser."""
        if self.is_up("slurmrestd"):
            return
        self._outside(self.layout.path("rest/slurmrestd.sock")).unlink(missing_ok=True)
        where = [f"127.0.0.1:{self.layout.rest_port}", f"unix:{self.layout.path('rest/slurmrestd.sock')}"]
        command = ["env", "SLURM_JWT=daemon", "slurmrestd", "-a", "rest_auth/jwt", *where]
        self._spawn("slurmrestd", command, user="slurmrestd")
        self._wait("slurmrestd", lambda: _answers(self.layout.rest_port), 20)

    def kill(self, name: str) -> None:
        """`kill -9` of slurmctld, slurmdbd, slurmrestd or slurmd.<node>."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str) -> None:
        self._end(name)

    def is_up(self, name: str) -> bool:
        return self._process(name) is not None

    def run(self, command: Sequence[str], user: str | None = None) -> str:
        """A Slurm command's output. Raises LabError when it fails."""
        return self._run(command, user=user).stdout

    def try_run(self, command: Sequence[str], user: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(command, user), env=self.environment(), capture_output=True, text=True, timeout=60, cwd="/"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.layout.rest_port}"

    @property
    def key_path(self) -> Path:
        return self._outside(self.layout.path("etc/jwt_hs256.key"))

    @property
    def jobs_dir(self) -> Path:
        """Where jobs start, seen from outside."""
        return self._outside(self.layout.path("jobs"))

    def environment(self) -> dict[str, str]:
        own = {
            "SLURM_CONF": str(self.layout.path("etc/slurm.conf")),
            "MYSQL_UNIX_PORT": str(self.layout.path("db/mysql.sock")),
        }
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **own}

    # -- setting up -----------------------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        root = self._outside(self.layout.root)
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o755)
        for user in settings.PEOPLE:
            self._make_user(user, "-m", "-s", "/bin/bash")
        self._make_user("slurmrestd", "-r", "-M", "-s", "/usr/sbin/nologin")
        for name in _FOLDERS:
            (root / name).mkdir(exist_ok=True)
        (root / "jobs").chmod(0o1777)
        for name, owner in (
            ("state", "slurm"),
            ("log", "slurm"),
            ("run", "slurm"),
            ("munge", "munge"),
            ("db", "mysql"),
        ):
            self._own(root / name, owner)
        self._own(root / "rest", "slurmrestd")
        self._make_secret(root / "munge/key", 1024, "munge")
        self._make_secret(root / "etc/jwt_hs256.key", 32, "slurm")
        for number in range(self.layout.gpus_per_node):
            device = root / f"dev/nvidia{number}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
                device.chmod(0o666)

    def _write_settings(self) -> None:
        etc = self._outside(self.layout.path("etc"))
        for name, text in (
            ("slurm.conf", settings.slurm_conf(self.layout)),
            ("gres.conf", settings.gres_conf(self.layout)),
            ("topology.conf", settings.topology_conf(self.layout)),
            ("cgroup.conf", settings.cgroup_conf(self.layout)),
        ):
            (etc / name).write_text(text)
        database = etc / "slurmdbd.conf"
        database.touch(mode=0o600)
        database.chmod(0o600)
        database.write_text(settings.slurmdbd_conf(self.layout))
        self._own(database, "slurm")

    def _start_munged(self) -> None:
        if self.is_up("munged"):
            return
        folder = self.layout.path("munge")
        options = {"key-file": "key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        given = [f"--{name}={folder / file}" for name, file in {**options, "seed-file": "seed"}.items()]
        self._run(["/usr/sbin/munged", "--force", *given], user="munge")
        self._wait("munged", lambda: self._outside(folder / "munge.sock").exists(), 10)

    def _start_database(self) -> None:
        if self.is_up("mariadbd"):
            return
        data, sock = self.layout.path("db/data"), self.layout.path("db/mysql.sock")
        if not (self._outside(data) / "mysql").is_dir():
            how = ["--skip-test-db", "--auth-root-authentication-method=socket"]
            self._run(["mariadb-install-db", "--user=mysql", f"--datadir={data}", *how])
        self._spawn(
            "mariadbd",
            [
                *("mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--socket={sock}"),
                "--skip-networking",
                *("--innodb-buffer-pool-size=256M", "--innodb-lock-wait-timeout=900"),
                *("--innodb-flush-log-at-trx-commit=2", "--max-allowed-packet=64M"),
            ],
        )
        ping = ["mariadb-admin", f"--socket={sock}", "ping"]
        self._wait("MariaDB", lambda: self.try_run(ping).returncode == 0, 60)
        statements = (
            "create database if not exists slurm_acct_db;"
            "create user if not exists slurm@localhost identified by 'loopback-only';"
            "grant all on slurm_acct_db.* to slurm@localhost"
        )
        self._run(["mariadb", f"--socket={sock}", "-e", statements])

    def _make_accounts(self) -> None:
        if "vision" in self.run(["sacctmgr", "-n", "-P", "show", "account", "format=account"]):
            return
        for line in settings.ACCOUNTS:
            self._run(["sacctmgr", "-i", *line.split()])

    def _make_user(self, name: str, *options: str) -> None:
        if self.try_run(["id", "-u", name]).returncode != 0:
            self._run(["useradd", *options, name])

    def _own(self, path: Path, user: str) -> None:
        # Names may have other numbers inside the chroot than outside.
        inside = path if self.chroot is None else Path("/") / path.relative_to(self.chroot)
        self._run(["chown", f"{user}:", str(inside)])

    def _make_secret(self, path: Path, size: int, owner: str) -> None:
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(size))
        path.chmod(0o600)
        self._own(path, owner)

    # -- processes ------------------------------------------------------------------------------------------------

    def _outside(self, path: Path) -> Path:
        return path if self.chroot is None else self.chroot / path.relative_to("/")

    def _command(self, command: Sequence[str], user: str | None) -> list[str]:
        prefix = ["chroot", str(self.chroot)] if self.chroot is not None else []
        # setpriv, and not runuser, which would start a session for a daemon.
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        return [*prefix, *become, *command]

    def _run(self, command: Sequence[str], user: str | None = None) -> subprocess.CompletedProcess[str]:
        done = self.try_run(command, user)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command[:3])} failed: {(done.stderr or done.stdout)[-1000:]}")
        return done

    def _spawn(self, name: str, command: Sequence[str], user: str | None = None) -> None:
        with self._outside(self.layout.path(f"log/{name}.out")).open("ab") as log:
            process = subprocess.Popen(
                self._command(command, user),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._pid_file(name).write_text(str(process.pid))

    def _pid_file(self, name: str) -> Path:
        folder = {"munged": "munge", "mariadbd": "db"}.get(name, "run")
        return self._outside(self.layout.path(f"{folder}/{name}.pid"))

    def _process(self, name: str) -> psutil.Process | None:
        """By its pid file, if that is still the same program: pids are used again."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(self._pid_file(name).read_text()))
            program = name.partition(".")[0]
            if process.status() != psutil.STATUS_ZOMBIE and program in " ".join([process.name(), *process.cmdline()]):
                return process
        return None

    def _end(self, name: str, number: signal.Signals = signal.SIGTERM, wait_s: float = 10.0) -> None:
        process = self._process(name)
        if process is None:
            return
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            try:
                process.wait(wait_s or 0.01)
            except psutil.TimeoutExpired:
                if wait_s:
                    process.kill()
        if number == signal.SIGKILL:
            self._pid_file(name).unlink(missing_ok=True)

    def _strays(self) -> list[psutil.Process]:
        """Step daemons, jobs and slurmds that are still ending: all that has the lab's settings in its environment."""
        found = []
        mine = str(self.layout.path("etc/slurm.conf"))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == mine:
                    found.append(process)
        psutil.wait_procs(found, timeout=2)
        return [process for process in found if process.is_running()]

    def _release(self) -> tuple[int, int]:
        text = self.run(["slurmd", "-V"]).split()[-1]
        major, minor = text.split(".")[:2]
        return int(major), int(minor)

    def _nodes_up(self) -> int:
        done = self.try_run(["sinfo", "-h", "-p", "train", "-t", "idle,mix,alloc", "-o", "%D"])
        return sum(int(line) for line in done.stdout.split() if line.isdigit())

    def _wait(self, what: str, is_there: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_there():
            if time.monotonic() > deadline:
                raise LabError(f"waited {seconds:g} s for {what}; see {self._outside(self.layout.path('log'))}")
            time.sleep(0.1)


def free_port() -> int:
    """The first of `PORTS` ports of which the lab's daemons can have theirs."""
    for port in range(FIRST_PORT, LAST_PORT, PORTS):
        if not any(_answers(port + offset) for offset in (0, 2, 3, 101)):
            return port
    raise LabError("no ports are free for another lab")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False

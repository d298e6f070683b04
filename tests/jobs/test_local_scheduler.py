"""What is the local scheduler's own: processes that outlive who started them, confinement, the line, the spool."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apps.jobs.schedulers import local_machine
from apps.jobs.schedulers.base import ObservedAccelerator, RunAs, Submission, SubmitRefused
from apps.jobs.schedulers.local import LocalScheduler
from apps.jobs.schedulers.local_queue import Amount, RunningJob, WaitingJob, decide
from apps.jobs.states import FINAL, JobState
from lab.embedded.instance import open_python
from tests.cast import local_config
from tests.harness import BASE_DIR
from tests.waiting import wait_until

IS_ROOT = os.geteuid() == 0
RUN_AS = RunAs("swy-59901", 59901, 59901) if IS_ROOT else RunAs("me")
OTHER = RunAs("swy-59902", 59902, 59902) if IS_ROOT else RunAs("me")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can run jobs under other users")


@pytest.fixture
def config(jobs_root: Path):
    made = local_config(jobs_root)
    yield made
    LocalScheduler(**made).end_running("the test has ended", 10)


def submit(scheduler: LocalScheduler, script: str, *, run_as: RunAs = RUN_AS, token: str = "", **values) -> str:
    token = token or f"sw-test-{os.urandom(6).hex()}"
    external_id = scheduler.submit_held(
        Submission(token, "a job", f"#!/bin/bash\n{script}\n", {}, run_as, **{"time_limit_s": 100} | values)
    )
    scheduler.release(external_id)
    return external_id


def ended(scheduler: LocalScheduler, external_id: str, timeout_s: float = 20):
    def look():
        (job,) = scheduler.jobs([external_id])
        return job if job.state in FINAL else None

    return wait_until(look, timeout_s)


def started(scheduler: LocalScheduler, external_id: str, text: str = "ready\n") -> Path:
    def look():
        (job,) = scheduler.jobs([external_id])
        path = Path(job.stdout_path) if job.stdout_path else None
        return path if path and path.exists() and path.read_text() == text else None

    return wait_until(look)


# -- who dies


def test_a_job_outlives_who_started_it_and_is_adopted(config):
    """The process that submitted is killed with all its children; another one sees the job to its end."""
    program = (
        "import sys, json, os, signal;"
        "from apps.jobs.schedulers.local import LocalScheduler;"
        "from apps.jobs.schedulers.base import *;"
        "s = LocalScheduler(**json.loads(sys.argv[1]));"
        f"i = s.submit_held(Submission('sw-t-1', 'n', '#!/bin/sh\\necho ready; sleep 3; echo done\\n', {{}}, "
        f"RunAs({RUN_AS.unix_user!r}, {RUN_AS.uid}, {RUN_AS.gid})));"
        "s.release(i); s.changes(None); print(i, flush=True);"
        "os.killpg(0, signal.SIGKILL)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(config)],
        cwd=BASE_DIR,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    external_id = process.communicate(timeout=30)[0].decode().strip()
    assert process.returncode == -signal.SIGKILL
    job = ended(LocalScheduler(**config), external_id)
    assert (job.state, Path(job.stdout_path).read_text()) == (JobState.COMPLETED, "ready\ndone\n")


def test_a_runner_that_is_killed_leaves_a_lost_job_and_no_process(config, jobs_root):
    scheduler = LocalScheduler(**config)
    external_id = submit(scheduler, "echo ready; setsid sleep 299 & sleep 299")
    started(scheduler, external_id)
    runner = json.loads((jobs_root / "spool" / "runs" / external_id / "runner.json").read_text())
    os.kill(runner["pid"], signal.SIGKILL)
    job = ended(scheduler, external_id)
    assert (job.state, job.exit_code) == (JobState.LOST, None)
    marker = f"SWITCHYARD_JOB={external_id}".encode()
    left = [p for p in Path("/proc").glob("[0-9]*/environ") if marker in _read(p).split(b"\0")]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_stopping_ends_what_runs_with_the_reason_and_starts_nothing_new(config):
    scheduler = LocalScheduler(**config)
    running = submit(scheduler, "echo ready; sleep 300", cpus_per_node=2)
    started(scheduler, running)
    waiting = submit(scheduler, "true", cpus_per_node=2)
    scheduler.pause("the product was stopped")
    assert scheduler.end_running("the product was stopped", 10) == 0
    job = ended(scheduler, running)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled: the product was stopped")
    (job,) = scheduler.jobs([waiting])
    assert (job.state, job.reason) == (JobState.PENDING, "no job starts: the product was stopped")
    scheduler.resume()
    assert ended(scheduler, waiting).state == JobState.COMPLETED


# -- what a job can reach


@needs_root
def test_a_job_can_open_neither_sockets_nor_secrets_nor_other_folders(config, jobs_root, services):
    """A job that tries, against the real servers and the folders a real install has."""
    secret = jobs_root / "secret_key"
    secret.write_text("secret")
    secret.chmod(0o600)
    scheduler = LocalScheduler(**config)
    mine = submit(scheduler, "echo private > note; echo ready; sleep 30", run_as=OTHER)
    other_folder = started(scheduler, mine).parent
    script = f"""
try() {{ if "$@" >/dev/null 2>&1; then echo "COULD: $*"; fi; }}
try cat {secret}
try ls {jobs_root}/spool
try ls {jobs_root}/jobs
try cat {other_folder}/note
try ls {other_folder}
try touch {other_folder}/x
try touch {jobs_root}/x
try kill -0 {os.getpid()}
try cat /proc/{os.getpid()}/environ
try cat /etc/shadow
try setpriv --reuid=0 true
try python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("{services.valkey.socket}")'
try python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("{services.postgres.socket_dir}/.s.PGSQL.5432")'
try python3 -c 'import os; os.setuid(0)'
ls -l /proc/self/fd | grep -v -E 'stdout.log|stderr.log|/dev/null|pipe|/proc|total|script' | sed 's/^/OPEN: /'
id -u; id -G
echo end
"""
    job = ended(scheduler, submit(scheduler, script))
    assert Path(job.stdout_path).read_text().splitlines() == ["59901", "59901", "end"]


@needs_root
def test_a_job_cannot_become_root_through_a_program_that_may(config):
    job = ended(LocalScheduler(**config), submit(LocalScheduler(**config), "grep NoNewPrivs /proc/self/status"))
    assert Path(job.stdout_path).read_text().split() == ["NoNewPrivs:", "1"]


@needs_root
@pytest.mark.parametrize("run_as", [RunAs("root", 0, 0), RunAs("x", 59901, 0), RunAs("nobody-has-this-name")])
def test_nobody_runs_as_root_or_as_nobody_known(config, run_as):
    with pytest.raises(SubmitRefused):
        submit(LocalScheduler(**config), "true", run_as=run_as)


def test_an_ordinary_user_must_allow_jobs_as_themselves(config, jobs_root):
    """Seen from a process without root: refused, unless the install says so, and then the cluster says so too."""
    code = jobs_root / "code"  # the checkout itself may be closed to other users
    shutil.copytree(BASE_DIR / "apps", code / "apps", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", str(code)], check=True)
    program = (
        "import os, sys, json, shutil, tempfile\n"
        "if os.geteuid() == 0:\n    os.setgroups([]); os.setgid(59903); os.setuid(59903)\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from apps.jobs.schedulers.local import LocalScheduler\n"
        "from apps.jobs.schedulers.base import *\n"
        "root = tempfile.mkdtemp()\n"
        "c = json.loads(sys.argv[1]) | {'spool_dir': root + '/spool', 'jobs_dir': root + '/jobs'}\n"
        "s = Submission('sw-t-2', 'n', '#!/bin/sh\\n', {}, RunAs('me'))\n"
        "try:\n    LocalScheduler(**c | {'allow_same_user': False}).submit_held(s)\n"
        "except SubmitRefused as error:\n    print('refused:', error)\n"
        "l = LocalScheduler(**c | {'allow_same_user': True})\n"
        "print('id', l.submit_held(s) != '')\n"
        "print([n for n in l.nodes().notes if 'can read and change whatever' in n] != [])\n"
        "shutil.rmtree(root)\n"
    )
    done = subprocess.run(
        [str(open_python()), "-c", program, json.dumps(config), str(code)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("refused: this cluster would have to run jobs as"), done.stderr
    assert lines[1:] == ["id True", "True"]


# -- the line


def job(number: int, cpus: int, limit_s: float | None = 100) -> WaitingJob:
    return WaitingJob(number, Amount(cpus=cpus), limit_s)


FOUR = Amount(cpus=4)


@pytest.mark.parametrize(
    ("running", "waiting", "start", "first"),
    [
        ([], [job(1, 2), job(2, 2)], (1, 2), None),
        # The first in line waits for 4; the second would fit but ends after the promised moment (t = 50).
        ([RunningJob(Amount(cpus=2), 50)], [job(1, 4), job(2, 2, 100)], (), 1),
        # ... and one that ends before it may go ahead.
        ([RunningJob(Amount(cpus=2), 50)], [job(1, 4), job(2, 2, 49)], (2,), 1),
        # One that needs only what is left over then may take as long as it likes.
        ([RunningJob(Amount(cpus=3), 50)], [job(1, 3), job(2, 1, None)], (2,), 1),
        # Without a limit nothing is promised, and nothing that needs the same is let ahead for ever.
        ([RunningJob(Amount(cpus=2), float("inf"))], [job(1, 4), job(2, 2, None)], (), 1),
    ],
)
def test_first_in_first_out_with_backfill_worked_out_by_hand(running, waiting, start, first):
    decision = decide(FOUR, running, waiting, now=0)
    assert (decision.start, decision.first_waiting) == (start, first)


def test_gpus_are_given_by_uuid_and_given_back(config, monkeypatch):
    cards = tuple(ObservedAccelerator(n, f"GPU-{n:08x}", "NVIDIA H100", 80 * 2**30) for n in range(2))
    monkeypatch.setattr(local_machine, "nvidia_accelerators", lambda: cards)
    scheduler = LocalScheduler(**config)
    one = submit(scheduler, 'echo "$CUDA_VISIBLE_DEVICES"; sleep 30', accelerators_per_node=1)
    started(scheduler, one, "GPU-00000000\n")
    two = submit(scheduler, 'echo "$CUDA_VISIBLE_DEVICES"', accelerators_per_node=1)
    assert Path(ended(scheduler, two).stdout_path).read_text() == "GPU-00000001\n"
    none = submit(scheduler, 'echo "[$CUDA_VISIBLE_DEVICES]"')
    assert Path(ended(scheduler, none).stdout_path).read_text() == "[]\n"
    (running,) = scheduler.jobs([one])
    assert [(card.index, card.uuid) for card in running.accelerators] == [(0, "GPU-00000000")]


# -- the spool


def test_a_damaged_file_of_one_job_does_not_lose_the_others(config, jobs_root):
    scheduler = LocalScheduler(**config)
    good = submit(scheduler, "true")
    ended(scheduler, good)
    bad = scheduler.submit_held(Submission("sw-t-bad", "bad", "#!/bin/sh\n", {}, RUN_AS))
    for path in (jobs_root / "spool" / "jobs").glob(f"{bad}*.json"):
        if "submission" not in path.name:
            path.write_text('{"id": 1, "sta')
    fresh = LocalScheduler(**config)
    states = {j.external_id: j.state for j in fresh.changes(None).jobs}
    assert states[good] == JobState.COMPLETED
    assert states[bad] in FINAL  # nobody knows what was meant: it must not start by itself


def test_a_spool_that_is_wiped_starts_anew_with_ids_that_were_never_used(config, jobs_root):
    scheduler = LocalScheduler(**config)
    first = submit(scheduler, "true")
    ended(scheduler, first)
    cursor = scheduler.changes(None).cursor
    shutil.rmtree(jobs_root / "spool")
    found = scheduler.changes(cursor)
    assert (found.jobs, found.complete) == ((), True)
    second = submit(scheduler, "true")
    assert int(second) > int(first)
    assert ended(scheduler, second).state == JobState.COMPLETED

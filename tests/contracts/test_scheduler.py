"""What every scheduler must do, said against the protocol alone (apps/jobs/schedulers/base.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from apps.jobs.schedulers.base import ActionRefused, NoSuchJob, ObservedNode, SubmitRefused
from apps.jobs.states import FINAL, JobState
from tests.contracts.conftest import UnderTest
from tests.waiting import wait_until


def test_a_job_that_is_submitted_held_does_not_start(under_test: UnderTest):
    external_id = under_test.scheduler.submit_held(under_test.submission("echo no"))
    time.sleep(0.5)
    under_test.scheduler.changes(None)
    job = under_test.job(external_id)
    assert (job.state, job.held, job.started_at) == (JobState.PENDING, True, None)


def test_a_released_job_runs_once_and_says_how_it_ended(under_test: UnderTest):
    before = datetime.now(UTC) - timedelta(seconds=2)
    submission = under_test.submission("echo out; echo err >&2", name="two streams")
    external_id = under_test.scheduler.submit_held(submission)
    for _ in range(2):  # twice is no error
        under_test.scheduler.release(external_id)
    job = under_test.wait_for(external_id)
    under_test.scheduler.release(external_id)  # nor is it after the end
    assert (job.state, job.exit_code, job.exit_signal) == (JobState.COMPLETED, 0, None)
    assert (job.token, job.name, job.external_id) == (submission.token, "two streams", external_id)
    assert before <= job.submitted_at <= job.started_at <= job.ended_at <= datetime.now(UTC) + timedelta(seconds=2)
    assert job.nodes
    assert Path(job.stdout_path).read_text() == "out\n"
    assert Path(job.stderr_path).read_text() == "err\n"
    assert job.folder is None or job.stdout_path.startswith(job.folder)


def test_a_token_finds_its_job_held_running_and_ended(under_test: UnderTest):
    submission = under_test.submission("sleep 1")
    external_id = under_test.scheduler.submit_held(submission)
    found = under_test.other.find_by_token(submission.token)
    assert (found.external_id, found.held) == (external_id, True)
    under_test.scheduler.release(external_id)
    under_test.wait_for(external_id, JobState.RUNNING)
    assert under_test.other.find_by_token(submission.token).external_id == external_id
    under_test.wait_for(external_id)
    assert under_test.other.find_by_token(submission.token).external_id == external_id
    assert under_test.scheduler.find_by_token("sw-contract-nothing") is None


def test_a_token_that_comes_twice_is_one_job(under_test: UnderTest):
    submission = under_test.submission("true")
    first = under_test.scheduler.submit_held(submission)
    second = under_test.other.submit_held(submission)
    if second != first:  # where the scheduler cannot tell, the caller ends the second
        under_test.scheduler.cancel(second)
    held = [job for job in under_test.scheduler.changes(None).jobs if job.token == submission.token]
    assert len([job for job in held if job.state not in FINAL]) == 1


@pytest.mark.parametrize(
    ("script", "state", "code", "number"),
    [
        ("exit 3", JobState.FAILED, 3, None),
        ("kill -9 $$", JobState.FAILED, None, 9),
        ("nonexistent-command", JobState.FAILED, 127, None),
        ("exit 0", JobState.COMPLETED, 0, None),
    ],
)
def test_how_a_job_ended(under_test: UnderTest, script, state, code, number):
    job = under_test.wait_for(under_test.start(script))
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, number)
    assert job.reason


def test_a_job_over_its_time_is_ended(under_test: UnderTest):
    limit_s = under_test.shortest_limit_s
    external_id = under_test.start("sleep 600", time_limit_s=limit_s)
    under_test.seconds += limit_s + under_test.over_limit_s
    job = under_test.wait_for(external_id)
    assert job.state == JobState.TIMED_OUT
    assert timedelta(seconds=limit_s) <= job.ended_at - job.started_at
    assert job.ended_at - job.started_at < timedelta(seconds=limit_s + under_test.over_limit_s)


def test_a_job_over_its_memory_is_ended(under_test: UnderTest):
    script = (
        "exec python3 -c 'a = bytearray(300 << 20); a[::4096] = b\"x\" * len(a[::4096]); import time; time.sleep(60)'"
    )
    job = under_test.wait_for(under_test.start(script, memory_bytes_per_node=100 << 20))
    assert job.state in under_test.over_memory


def test_a_cancelled_job_that_waits_never_starts(under_test: UnderTest):
    external_id = under_test.scheduler.submit_held(under_test.submission("echo no"))
    under_test.scheduler.cancel(external_id, "not wanted")
    job = under_test.wait_for(external_id)
    assert (job.state, job.started_at) == (JobState.CANCELLED, None)
    assert "not wanted" in job.reason or not under_test.keeps_reasons
    under_test.scheduler.cancel(external_id)  # it has ended: no error


def test_a_cancelled_job_that_runs_gets_a_moment_to_save(under_test: UnderTest):
    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    external_id = under_test.start(script)
    job = under_test.wait_for(external_id, JobState.RUNNING)
    wait_until(lambda: Path(job.stdout_path).exists() and Path(job.stdout_path).read_text() == "ready\n")
    under_test.scheduler.cancel(external_id)
    job = under_test.wait_for(external_id)
    assert job.state == JobState.CANCELLED
    assert Path(job.stdout_path).read_text() == "ready\nsaved\n"


def test_a_job_that_ignores_the_signal_is_killed_with_all_its_children(under_test: UnderTest):
    script = "trap '' TERM; (trap '' TERM; sleep 300) & setsid sleep 300 & echo ready; sleep 300"
    external_id = under_test.start(script)
    job = under_test.wait_for(external_id, JobState.RUNNING)
    wait_until(lambda: Path(job.stdout_path).exists() and Path(job.stdout_path).read_text() == "ready\n")
    under_test.scheduler.cancel(external_id)
    assert under_test.wait_for(external_id).state == JobState.CANCELLED


def test_ids_it_never_had(under_test: UnderTest):
    with pytest.raises(NoSuchJob):
        under_test.scheduler.cancel("999999999")
    assert under_test.scheduler.jobs(["999999999", "nonsense"]) == []


def test_a_waiting_job_is_held_and_released(under_test: UnderTest):
    blocker = under_test.start("sleep 60", cpus_per_node=under_test.cpus)
    under_test.wait_for(blocker, JobState.RUNNING)
    waiting = under_test.start("true")
    assert (under_test.job(waiting).state, under_test.job(waiting).held) == (JobState.PENDING, False)
    assert under_test.job(waiting).reason
    under_test.scheduler.hold(waiting)
    assert under_test.job(waiting).held
    under_test.scheduler.cancel(blocker)
    under_test.wait_for(blocker)
    time.sleep(0.3)
    under_test.scheduler.changes(None)
    assert under_test.job(waiting).state == JobState.PENDING
    under_test.scheduler.release(waiting)
    assert under_test.wait_for(waiting).state == JobState.COMPLETED


def test_holding_a_job_that_runs_changes_nothing(under_test: UnderTest):
    external_id = under_test.start("sleep 1")
    under_test.wait_for(external_id, JobState.RUNNING)
    under_test.scheduler.hold(external_id)
    assert under_test.wait_for(external_id).state == JobState.COMPLETED


def test_no_change_is_missed_and_a_quiet_poll_is_empty(under_test: UnderTest):
    """What is put together from the changes alone is what a whole look says."""
    known = {}
    first = under_test.scheduler.changes(None)
    assert first.complete
    cursor = first.cursor
    ids = [under_test.scheduler.submit_held(under_test.submission("true")) for _ in range(3)]
    for external_id in ids[:2]:
        under_test.scheduler.release(external_id)

    def settled() -> bool:
        nonlocal cursor
        found = under_test.other.changes(cursor)
        cursor = found.cursor
        known.update({job.external_id: job for job in found.jobs})
        return [known[i].state for i in ids if i in known] == [JobState.COMPLETED, JobState.COMPLETED, JobState.PENDING]

    wait_until(settled, under_test.seconds)
    whole = {job.external_id: job.state for job in under_test.scheduler.changes(None).jobs}
    assert {i: known[i].state for i in ids} == {i: whole[i] for i in ids}

    def quiet() -> bool:
        nonlocal cursor
        found = under_test.other.changes(cursor)
        cursor = found.cursor
        return found.jobs == ()

    wait_until(quiet, under_test.seconds)


@pytest.mark.parametrize("cursor", ["", "nonsense", "0", "zz-99999999"])
def test_a_cursor_that_means_nothing_brings_everything(under_test: UnderTest, cursor):
    external_id = under_test.scheduler.submit_held(under_test.submission("true"))
    found = under_test.scheduler.changes(cursor)
    assert external_id in {job.external_id for job in found.jobs}


def test_the_job_gets_what_it_was_given_and_nothing_of_ours(under_test: UnderTest, monkeypatch):
    monkeypatch.setenv("SECRET_OF_OURS", "secret")
    odd = 'it\'s $(reboot) `id` "x"\nline two \N{ROCKET}'
    job = under_test.wait_for(under_test.start("env -0", environment={"ODD": odd, "EMPTY": ""}))
    pairs = Path(job.stdout_path).read_bytes().split(b"\0")[:-1]
    given = dict(pair.decode().split("=", 1) for pair in pairs)
    assert (given["ODD"], given["EMPTY"]) == (odd, "")
    assert not {"SECRET_OF_OURS", "DATABASE_URL", "REDIS_URL", "SWITCHYARD_SECRET_KEY"} & set(given)


@pytest.mark.parametrize("name", ["#SBATCH --nodes=9", 'it\'s $(reboot) "x"', "\N{ROCKET} " + "x" * 198, "-rf /"])
def test_a_name_is_only_a_name(under_test: UnderTest, name):
    job = under_test.wait_for(under_test.start("true", name=name))
    assert (job.state, job.name) == (JobState.COMPLETED, name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 100_000},
        {"cpus_per_node": 100_000},
        {"accelerators_per_node": 1000},
        {"memory_bytes_per_node": 2**60},
        {"partition": "nowhere"},
    ],
)
def test_what_can_never_run_is_refused_and_makes_no_job(under_test: UnderTest, wrong):
    submission = under_test.submission("true", **wrong)
    try:
        external_id = under_test.scheduler.submit_held(submission)
    except SubmitRefused:
        found = under_test.scheduler.find_by_token(submission.token)
        assert found is None or (found.state in FINAL and found.started_at is None)
    else:  # one that looks at a held job only when it is released: then it stays where it is, and says so
        assert not under_test.refuses_at_once
        under_test.scheduler.release(external_id)
        time.sleep(2)
        job = under_test.job(external_id)
        assert (job.state, job.started_at) == (JobState.PENDING, None)
        assert job.reason


def test_nodes_and_partitions_say_what_there_is_and_what_is_used(under_test: UnderTest):
    view = under_test.scheduler.nodes()
    assert [partition for partition in view.partitions if partition.is_default]
    mine = [node for node in view.nodes if under_test.partition in (None, *node.partitions)]
    assert sum(node.cpus for node in mine) == under_test.cpus
    external_id = under_test.start("sleep 60", cpus_per_node=under_test.cpus)
    under_test.wait_for(external_id, JobState.RUNNING)
    (node,) = [n for n in under_test.scheduler.nodes().nodes if n.name in under_test.job(external_id).nodes]
    assert (node.state, node.cpus_used) == ("allocated", under_test.cpus)


@pytest.fixture
def names(under_test: UnderTest) -> Iterator[list[str]]:
    """All its nodes, in service again afterwards."""
    if not under_test.sets_nodes:
        pytest.skip("it does not drain or resume nodes")
    names = [node.name for node in under_test.scheduler.nodes().nodes]
    yield names
    under_test.scheduler.set_nodes(names, "resume")


def seen(under_test: UnderTest) -> list[ObservedNode]:
    return list(under_test.other.nodes().nodes)


def test_drained_nodes_start_nothing_until_they_are_resumed(under_test: UnderTest, names):
    running = under_test.start("sleep 3")
    under_test.wait_for(running, JobState.RUNNING)
    for _ in range(2):  # twice is no error
        under_test.scheduler.set_nodes(names, "drain", "fan is loud")
    assert {("drain" in node.flags, "fan is loud" in node.reason) for node in seen(under_test)} == {(True, True)}
    assert {node.state for node in seen(under_test)} <= {"drained", "draining"}
    waiting = under_test.start("true")
    assert under_test.wait_for(running).state == JobState.COMPLETED
    time.sleep(1)
    under_test.scheduler.changes(None)
    assert under_test.job(waiting).state == JobState.PENDING and under_test.job(waiting).reason
    under_test.scheduler.set_nodes(names, "drain", "fan is gone")  # a new reason takes the old one's place
    assert all("fan is gone" in node.reason and "loud" not in node.reason for node in seen(under_test))
    for _ in range(2):
        under_test.other.set_nodes(names, "resume")
    assert not any("drain" in node.flags for node in seen(under_test))
    assert under_test.wait_for(waiting).state == JobState.COMPLETED


@pytest.mark.parametrize("reason", ['it\'s $(reboot) "x"', "nodes=all state=down", "\N{ROCKET} " + "x" * 198])
def test_a_reason_is_only_a_reason(under_test: UnderTest, names, reason):
    under_test.scheduler.set_nodes(names[:1], "drain", reason)
    (node,) = [node for node in seen(under_test) if node.name == names[0]]
    assert reason in node.reason
    assert [other.name for other in seen(under_test) if "drain" in other.flags] == names[:1]


@pytest.mark.parametrize("action", ["drain", "resume"])
def test_nodes_it_does_not_have_are_refused(under_test: UnderTest, names, action):
    with pytest.raises(ActionRefused):
        under_test.scheduler.set_nodes(["no-such-node"], action, "why")
    assert not any("drain" in node.flags for node in seen(under_test))

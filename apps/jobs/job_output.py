"""Output that a job on another machine sends to us: who may send it, and what becomes of it.

The job's script is wrapped (schedulers/wrapping.py) and carries a token that can do nothing but append to the log of
its own attempt, until ten minutes after that has ended. The token is signed and not stored.
"""

from __future__ import annotations

from datetime import timedelta

from django.core import signing
from django.utils import timezone

from apps.core.errors import Unavailable
from apps.jobs import logstore
from apps.jobs.ingest import ingest_metrics
from apps.jobs.models import JobAttempt
from apps.jobs.states import FINAL

STREAMS = tuple(logstore.FILES)
# What a job said last may be on its way while the scheduler's word of its end is here already.
OPEN_AFTER_END = timedelta(minutes=10)
_SIGNER = signing.Signer(salt="switchyard.job-output")


def output_token(attempt: JobAttempt) -> str:
    """For the wrapped script of this attempt, and of the scheduler's own restarts of it."""
    return _SIGNER.sign(str(attempt.pk))


def sending_attempt(token: str, restart: int) -> JobAttempt | None:
    """The attempt whose output may be added to with `token`; None when there is none, or not any more.

    `restart`: how often the scheduler has started that job anew, each of which is an attempt of its own. Raises
    Unavailable for a start that no poll has seen yet.
    """
    try:
        pk = int(_SIGNER.unsign(token))
    except (signing.BadSignature, ValueError):
        return None
    attempts = JobAttempt.objects.select_related("job", "cluster")
    submitted = attempts.filter(pk=pk).first()
    # Jobs of this machine have files that nobody else may write to.
    if submitted is None or submitted.cluster.scheduler == "local":
        return None
    if restart <= submitted.restart_count:
        return submitted if _is_open(submitted) else None
    started = (
        attempts.filter(
            job=submitted.job_id,
            cluster=submitted.cluster_id,
            external_id=submitted.external_id,
            task_index=submitted.task_index,
            restart_count__gte=restart,
        )
        .order_by("restart_count", "number")
        .first()
    )
    if started is not None:
        return started if _is_open(started) else None
    if submitted.job.state in FINAL:
        return None
    raise Unavailable("This start of the job is not known yet. Send it again in a few seconds.")


def append_output(attempt: JobAttempt, stream: str, offset: int, data: bytes) -> int:
    """Add to the attempt's log; returns the offset to go on from. Raises logstore.Gap, logstore.Full or Unavailable."""
    if not logstore.has_room():
        raise Unavailable("There is no room for more output now.")
    try:
        end = logstore.append(attempt, stream, offset, data)
    except OSError as error:
        raise Unavailable(f"The output could not be kept: {error.strerror}.") from error
    if not attempt.folder:
        # Until now its paths, if it has any, were those on the other machine.
        JobAttempt.objects.filter(pk=attempt.pk, folder="").update(**logstore.paths_for(attempt)._asdict())
    if stream == "metrics" and attempt.state in FINAL:
        ingest_metrics(attempt.pk)  # no poll will look at it again
    return end


def _is_open(attempt: JobAttempt) -> bool:
    if attempt.state not in FINAL:
        return True
    ended_at = attempt.ended_at or attempt.settled_at
    return ended_at is not None and ended_at > timezone.now() - OPEN_AFTER_END

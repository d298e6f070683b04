"""From a committed row to a job at the scheduler, exactly once. docs/life-of-a-job.md draws it.

    claim     one guarded UPDATE: who changes the row has it; the attempt's token is committed before anybody is asked
    submit    held, so that it cannot start; any doubt is resolved by looking for the token
    record    the external id, once; a second one is a stray and is ended
    release   only after that commit

A worker may die between any two lines: after `claimed_until` the sweeper calls `recover_attempt`, which goes on from
what the rows say.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from apps.accounts.models import UnixIdentity
from apps.core.install import install_id
from apps.jobs import logstore
from apps.jobs.carry_out import carry_out_wish
from apps.jobs.ending import Ending, end_attempt, event
from apps.jobs.job_output import output_token
from apps.jobs.locks import lock_attempt, lock_job
from apps.jobs.models import Job, JobAttempt, Wanted
from apps.jobs.observing import observe_attempt
from apps.jobs.schedulers.base import (
    RunAs,
    Scheduler,
    SchedulerError,
    SchedulerUnavailable,
    Submission,
    SubmitRefused,
    SubmitUncertain,
)
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.schedulers.wrapping import wrap
from apps.jobs.states import FINAL, JobState

log = logging.getLogger(__name__)

# Longer than any adapter's own time limit for one submit, so that a claim that has run out belongs to a dead worker.
CLAIM_S = 60
UNAVAILABLE_RETRY_S = 10
# Longer than a controller may sit on a request that its client has given up.
FOUND_TWICE_APART_S = 10


def dispatch_jobs(pks: Sequence[int]) -> int:
    """Hand over those of the jobs that nobody else has; returns how many this call claimed."""
    claimed = 0
    for pk in pks:
        attempt = _claim(pk)
        if attempt is not None:
            claimed += 1
            _hand_over(attempt, look_first=False)
    return claimed


def recover_attempt(pk: int) -> None:
    """Go on with an attempt whose worker has not come back in time. Does nothing if somebody else has taken it."""
    now = timezone.now()
    taken = JobAttempt.objects.filter(
        pk=pk, claimed_until__lt=now, released_at__isnull=True, state__in=_open_states()
    ).update(claimed_until=now + timedelta(seconds=CLAIM_S))
    if not taken:
        return
    attempt = JobAttempt.objects.select_related("job__cluster").get(pk=pk)
    if attempt.external_id:
        _release(attempt, _scheduler(attempt))
    else:
        _hand_over(attempt, look_first=True)


def _claim(job_pk: int) -> JobAttempt | None:
    now = timezone.now()
    if not Job.objects.filter(pk=job_pk, cluster__is_enabled=True).exists():
        return None
    with transaction.atomic():
        # Columns of this table alone: a join would become a sub-select, which PostgreSQL does not look at again after
        # waiting for somebody else's update of the row, and both would win.
        won = (
            Job.objects.filter(pk=job_pk, state=JobState.QUEUED, is_held=False, wanted=Wanted.NOTHING)
            .filter(Q(not_before__isnull=True) | Q(not_before__lte=now))
            .update(state=JobState.DISPATCHING, attempt_count=F("attempt_count") + 1, reason="", updated_at=now)
        )
        if not won:
            return None
        job = Job.objects.select_related("cluster").get(pk=job_pk)
        return JobAttempt.objects.create(
            job=job,
            cluster=job.cluster,
            number=job.attempt_count,
            token=f"sw-{install_id()}-{uuid.uuid4().hex}",
            claimed_until=now + timedelta(seconds=CLAIM_S),
        )


def _hand_over(attempt: JobAttempt, *, look_first: bool) -> None:
    try:
        scheduler = _scheduler(attempt)
    except SchedulerError as error:  # it is set up wrongly; nobody has been asked
        _later(attempt, JobState.DISPATCHING, f"waits for {attempt.cluster}: {error}")
        return
    try:
        external_id = _find(scheduler, attempt) if look_first else None
        if external_id is None and look_first and (_is_cancelled_meanwhile(attempt) or _may_still_arrive(attempt)):
            return
        if external_id is None:
            external_id = _submit_or_find(scheduler, attempt)
    except SubmitRefused as error:
        _refused(attempt, str(error))
        return
    except SchedulerUnavailable as error:
        _later(attempt, JobState.DISPATCHING, f"waits for {attempt.cluster}: {error}")
        return
    except SchedulerError as error:
        _later(attempt, JobState.UNKNOWN, f"not known yet whether {attempt.cluster} took it: {error}")
        return
    if _record(attempt, external_id):
        _release(attempt, scheduler)
    else:
        _end_stray(scheduler, attempt, external_id)


def _submit_or_find(scheduler: Scheduler, attempt: JobAttempt) -> str:
    """Raises SubmitUncertain when the lost submit's job is not to be found now: it may still arrive."""
    try:
        return scheduler.submit_held(submission_of(attempt))
    except SubmitUncertain:
        found = _find(scheduler, attempt)
        if found is None:
            raise
        return found


def _find(scheduler: Scheduler, attempt: JobAttempt) -> str | None:
    observed = scheduler.find_by_token(attempt.token)
    return None if observed is None else observed.external_id


def _record(attempt: JobAttempt, external_id: str) -> bool:
    """Write the external id unless another one is there already."""
    now = timezone.now()
    with transaction.atomic():
        job = lock_job(attempt.job_id)
        won = JobAttempt.objects.filter(pk=attempt.pk, external_id__isnull=True, state__in=_open_states()).update(
            external_id=external_id,
            state=JobState.PENDING,
            submitted_at=now,
            missing_since=None,
            claimed_until=now + timedelta(seconds=CLAIM_S),
        )
        if not won:
            return JobAttempt.objects.filter(pk=attempt.pk, external_id=external_id).exists()
        job.external_id, job.state, job.is_held, job.reason = external_id, JobState.PENDING, True, ""
        job.save(update_fields=["external_id", "state", "is_held", "reason", "updated_at"])
        event(job, "state.pending", f"handed to {attempt.cluster} as {external_id}", attempt=attempt)
    attempt.external_id = external_id
    return True


def _release(attempt: JobAttempt, scheduler: Scheduler) -> None:
    """Let it start, unless somebody wants it cancelled or held by now."""
    wanted = Job.objects.values_list("wanted", flat=True).get(pk=attempt.job_id)
    if wanted == Wanted.CANCEL or wanted == Wanted.HOLD:
        _mark_released(attempt, "stays held" if wanted == Wanted.HOLD else "")
        carry_out_wish(attempt.job_id)
        return
    try:
        scheduler.release(str(attempt.external_id))
    except SchedulerError as error:
        _later(attempt, JobState.PENDING, f"waits for {attempt.cluster} to release it: {error}")
        return
    _mark_released(attempt, "")
    observe_attempt(attempt, scheduler)
    carry_out_wish(attempt.job_id)  # one that came while the release was under way


def _mark_released(attempt: JobAttempt, why_not: str) -> None:
    with transaction.atomic():
        Job.objects.filter(pk=attempt.job_id, state=JobState.PENDING).update(
            is_held=bool(why_not), reason=why_not, updated_at=timezone.now()
        )
        JobAttempt.objects.filter(pk=attempt.pk).update(released_at=timezone.now(), claimed_until=None)


def _refused(attempt: JobAttempt, text: str) -> None:
    with transaction.atomic():
        job, locked = lock_attempt(attempt)
        if locked.state not in FINAL:
            reason = f"{attempt.cluster} refused it: {text}"
            end_attempt(job, locked, Ending(JobState.FAILED, reason, timezone.now()))


def _may_still_arrive(attempt: JobAttempt) -> bool:
    """A submit whose outcome is unknown is repeated only when its job was not to be found twice, some time apart."""
    if attempt.state != JobState.UNKNOWN:
        return False
    now = timezone.now()
    if attempt.missing_since is not None and now - attempt.missing_since >= timedelta(seconds=FOUND_TWICE_APART_S):
        return False
    JobAttempt.objects.filter(pk=attempt.pk, missing_since__isnull=True).update(missing_since=now)
    _later(attempt, JobState.UNKNOWN, attempt.reason or f"not known yet whether {attempt.cluster} took it")
    return True


def _is_cancelled_meanwhile(attempt: JobAttempt) -> bool:
    """End a try that never reached the scheduler when the job is no longer wanted."""
    with transaction.atomic():
        job, locked = lock_attempt(attempt)
        if job.wanted != Wanted.CANCEL or locked.state in FINAL:
            return False
        end_attempt(job, locked, Ending(JobState.CANCELLED, job.wanted_reason, timezone.now()))
    return True


def _later(attempt: JobAttempt, state: JobState, reason: str) -> None:
    """Nothing more can be done now. The sweeper comes back to it."""
    log.warning("job %s: %s", attempt.job_id, reason)
    with transaction.atomic():
        job, locked = lock_attempt(attempt)
        if locked.state in FINAL:
            return
        until = timezone.now() + timedelta(seconds=UNAVAILABLE_RETRY_S)
        JobAttempt.objects.filter(pk=attempt.pk).update(claimed_until=until, state=state, reason=reason[:1000])
        if job.state != state or job.reason != reason[:1000]:
            job.state, job.reason = state, reason[:1000]
            job.save(update_fields=["state", "reason", "updated_at"])
            event(job, "dispatch.waits", reason, attempt=attempt)


def _end_stray(scheduler: Scheduler, attempt: JobAttempt, external_id: str) -> None:
    log.error("attempt %s: ending a second job %s at the scheduler", attempt.token, external_id)
    scheduler.cancel(external_id, "a second copy of a job that was handed over already")


def _scheduler(attempt: JobAttempt) -> Scheduler:
    return scheduler_for(attempt.cluster.scheduler, attempt.cluster.config)


def _open_states() -> list[str]:
    return [state.value for state in JobState if state not in FINAL]


def submission_of(attempt: JobAttempt) -> Submission:
    """What the scheduler is told. Everything in it was validated when the job was submitted."""
    job = attempt.job
    identity = UnixIdentity.objects.filter(user=job.submitted_by, cluster=job.cluster).first()
    unix_user = identity.unix_user if identity else job.unix_user
    # A cluster that runs jobs as the product's own user gives no one a uid.
    uid = identity.uid if identity and not job.cluster.config.get("allow_same_user") else None
    return Submission(
        token=attempt.token,
        name=job.name,
        script=_script_of(attempt),
        environment={**job.environment, **_given_environment(job)},
        run_as=RunAs(unix_user=unix_user, uid=uid, gid=uid),
        working_dir=job.working_dir or None,
        partition=job.partition or None,
        account=job.account_name or None,
        nodes=job.nodes,
        cpus_per_node=job.cpus_per_node,
        accelerators_per_node=job.accelerators_per_node,
        memory_bytes_per_node=job.memory_bytes_per_node,
        time_limit_s=job.time_limit_s,
        qos=job.qos or None,
        reservation=job.reservation or None,
        constraints=job.constraints or None,
    )


def _script_of(attempt: JobAttempt) -> str:
    """The person's script; where the cluster's nodes reach us at `log_url`, inside one that sends us its output."""
    config = attempt.cluster.config
    if attempt.cluster.scheduler == "local" or not config.get("log_url"):
        return attempt.job.script
    try:
        return wrap(
            attempt.job.script, url=config["log_url"], token=output_token(attempt), ca=config.get("log_ca") or ""
        )
    except ValueError as error:  # the site has set it up wrongly; nobody has been asked
        raise SchedulerUnavailable(f"its log_url cannot be used: {error}") from error


def _given_environment(job: Job) -> dict[str, str]:
    """What every job may rely on. The interpreter and the examples are this machine's, so for jobs on it alone."""
    given = {"SWITCHYARD_JOB_PUBLIC_ID": job.public_id, "SWITCHYARD_JOB_NAME": job.name}
    if job.cluster.scheduler == "local":
        env = settings.SWITCHYARD
        given |= {"SWITCHYARD_PYTHON": env.job_python, "SWITCHYARD_EXAMPLES": str(env.examples_dir)}
    parent = job.parent_checkpoint
    if parent is not None:
        attempt = parent.attempt
        # What was sent to us is not where the job ran: its checkpoints are there.
        folder = attempt.job.working_dir if logstore.is_kept_here(attempt) else attempt.folder
        given["SWITCHYARD_PARENT_CHECKPOINT"] = (
            parent.path if parent.path.startswith("/") or not folder else f"{folder}/{parent.path}"
        )
    return given


def due_for_recovery(now: datetime, limit: int) -> list[tuple[int, str]]:
    """Attempts whose claim has run out: pk and the cluster's name, oldest first."""
    return list(
        JobAttempt.objects.filter(claimed_until__lt=now, released_at__isnull=True, state__in=_open_states())
        .order_by("claimed_until")
        .values_list("pk", "cluster__name")[:limit]
    )

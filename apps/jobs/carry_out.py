"""Carry out what people want of a job the scheduler has: cancel, hold, release. Safe to run twice."""

from __future__ import annotations

import logging

from django.utils import timezone

from apps.jobs.models import Job, JobAttempt, Wanted
from apps.jobs.observing import observe_attempt
from apps.jobs.schedulers.base import NoSuchJob, SchedulerError
from apps.jobs.schedulers.registry import scheduler_for
from apps.jobs.states import FINAL

log = logging.getLogger(__name__)


def carry_out_wish(job_pk: int) -> None:
    """Tell the scheduler, then look what became of the job. A scheduler that does not answer is asked again later."""
    job = Job.objects.select_related("cluster").get(pk=job_pk)
    wanted = Wanted(job.wanted)
    attempt = job.attempts.filter(number=job.attempt_count).select_related("cluster").first()
    # Until the attempt has an external id its dispatch decides; until it was released, a hold could be undone by it.
    if wanted == Wanted.NOTHING or attempt is None or not attempt.external_id or attempt.state in FINAL:
        return
    if wanted != Wanted.CANCEL and attempt.released_at is None:
        return
    try:
        scheduler = scheduler_for(job.cluster.scheduler, job.cluster.config)
        if wanted == Wanted.CANCEL:
            # The scheduler says "cancelled" itself.
            scheduler.cancel(attempt.external_id, job.wanted_reason.removeprefix("cancelled "))
        elif wanted == Wanted.HOLD:
            scheduler.hold(attempt.external_id)
        else:
            scheduler.release(attempt.external_id)
        observe_attempt(attempt, scheduler)
    except NoSuchJob:
        JobAttempt.objects.filter(pk=attempt.pk, missing_since__isnull=True).update(missing_since=timezone.now())
    except SchedulerError as error:
        log.warning("job %s: %s is not carried out yet: %s", job.public_id, wanted.value, error)
        return
    # A cancel stays on the row until the job has ended, so that pages say "cancelling".
    if wanted != Wanted.CANCEL:
        Job.objects.filter(pk=job.pk, wanted=wanted).update(wanted=Wanted.NOTHING, wanted_reason="")

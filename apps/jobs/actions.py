"""The verbs of jobs that people and scripts use. What workers do stands in dispatch, carry_out and reconcile."""

from apps.jobs.control import CancelResult, cancel_job, cancel_jobs, hold_job, release_job
from apps.jobs.submission import Check, check_job, spec_of, submit_job, submit_jobs

__all__ = [
    "CancelResult",
    "Check",
    "cancel_job",
    "cancel_jobs",
    "check_job",
    "hold_job",
    "release_job",
    "spec_of",
    "submit_job",
    "submit_jobs",
]

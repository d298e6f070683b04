"""`manage.py demo`: train the example model on this machine and watch it, end to end."""

from __future__ import annotations

import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.units import format_duration
from apps.jobs.actions import submit_job
from apps.jobs.examples import example
from apps.jobs.first_rows import make_first_rows
from apps.jobs.local_cluster import open_local_cluster
from apps.jobs.models import Job, MetricSeries
from apps.jobs.states import FINAL, JobState

_BAR = 30


class Command(BaseCommand):
    help = "Submits the example training job, shows its progress, and ends with exit code 0 when it has completed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", default="http://127.0.0.1:8420", help="where the pages are, to be printed")
        parser.add_argument("--timeout", type=int, default=600, help="seconds to wait for the end")

    def handle(self, *args: Any, **options: Any) -> None:
        cluster = open_local_cluster()
        first = make_first_rows()
        job = submit_job(first.project, cluster, example("char-lm").spec, by=first.operator)
        self.stdout.write(f"\nTraining job {job.public_id} submitted: {job.name}")
        job = self._watch(job, options["timeout"])
        self._say_end(job)
        self.stdout.write(f"\n  Dashboard   {options['url']}/\n  This job    {options['url']}/jobs/{job.public_id}/")
        self.stdout.write(f"  Sign in as  {first.operator.username}")
        if first.password_file is not None:
            self.stdout.write(
                f"  Password    {first.password_file.read_text().strip()}   (kept in {first.password_file})"
            )
        self.stdout.write("  Stop it     make stop\n")
        if job.state != JobState.COMPLETED:
            raise CommandError(f"the job ended as {job.state}: {job.reason}")

    def _watch(self, job: Job, timeout_s: int) -> Job:
        deadline, shown = time.monotonic() + timeout_s, ""
        while True:
            job.refresh_from_db()
            line = self._line(job)
            if line != shown:
                self._draw(line)
                shown = line
            if job.state in FINAL:
                self.stdout.write("")
                return job
            if time.monotonic() > deadline:
                self.stdout.write("")
                raise CommandError(f"the job has not ended within {timeout_s} s; it is {job.state} {job.reason}")
            time.sleep(0.5)

    def _line(self, job: Job) -> str:
        share = 1.0 if job.state == JobState.COMPLETED else job.progress or 0.0
        bar = "█" * round(share * _BAR) + "░" * (_BAR - round(share * _BAR))
        loss = MetricSeries.objects.filter(attempt__job=job, name="loss").values_list("last_value", flat=True).first()
        parts = [f"{job.state:<11}", bar, f"{share:4.0%}", job.progress_text]
        if loss is not None:
            parts.append(f"loss {loss:.2f}")
        return "  ".join(part for part in parts if part)

    def _draw(self, line: str) -> None:
        """Over the last line on a terminal; a line of its own in a log."""
        if sys.stdout.isatty():
            self.stdout.write(f"\r\033[K  {line}", ending="")
        else:
            self.stdout.write(f"  {line}")
        self.stdout.flush()

    def _say_end(self, job: Job) -> None:
        if job.started_at and job.ended_at:
            took = format_duration((job.ended_at - job.started_at).total_seconds())
            self.stdout.write(f"  {job.state} after {took}; {job.cpu_hours:.4f} CPU-hours used")

"""What a job writes beside its log: metrics, progress and checkpoints, read on from where the last read ended."""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from django.db import transaction
from django.utils import timezone

from apps.jobs import folder, logtext, metricsfile
from apps.jobs.ending import event
from apps.jobs.locks import lock_attempt
from apps.jobs.models import Checkpoint, Job, JobAttempt, MetricSeries

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
# At the end of a job everything is read, within reason: 64 MiB of metrics are a million points.
MAX_CHUNKS_AT_END = 64
MAX_SERIES = 200
MAX_CHECKPOINTS = 10_000
_LAST_WORDS_BYTES = 8192


def ingest_metrics(attempt_pk: int, *, to_the_end: bool = False) -> None:
    """Read what has been added since the last time. A file that cannot be read is tried again at the next poll."""
    for _ in range(MAX_CHUNKS_AT_END if to_the_end else 4):
        try:
            if not _ingest_chunk(attempt_pk, is_last_look=to_the_end):
                return
        except (OSError, folder.Outside) as error:
            log.info("metrics of attempt %s cannot be read: %s", attempt_pk, error)
            return


def last_words(attempt: JobAttempt) -> str:
    """The last line a failed job wrote to stderr, or else to stdout; "" when there is none."""
    for path in (attempt.stderr_path, attempt.stdout_path):
        try:
            chunk = folder.read_range(
                Path(attempt.folder), _inside(attempt, path), -_LAST_WORDS_BYTES, _LAST_WORDS_BYTES
            )
        except (OSError, ValueError, folder.Outside):
            continue
        lines = [line.strip() for line in logtext.plain(chunk.data).splitlines() if line.strip()]
        if lines:
            return lines[-1][:500].replace("\0", "")
    return ""


def _inside(attempt: JobAttempt, path: str) -> str:
    """`path` relative to the attempt's folder. Raises ValueError when it is not in there."""
    return str(PurePosixPath(path).relative_to(attempt.folder))


@transaction.atomic
def _ingest_chunk(attempt_pk: int, *, is_last_look: bool) -> bool:
    """One chunk, its offset and its rows in one transaction; returns whether there may be more.

    The file is read under the rows' locks: two readers would otherwise both add the same points.
    """
    _, attempt = lock_attempt(JobAttempt.objects.only("pk", "job").get(pk=attempt_pk))
    if not attempt.folder or not attempt.metrics_path:
        return False
    try:
        relative = _inside(attempt, attempt.metrics_path)
        chunk = folder.read_range(Path(attempt.folder), relative, attempt.metrics_offset, CHUNK_BYTES)
    except (FileNotFoundError, ValueError):
        return False
    at_end = chunk.end >= chunk.size_bytes
    data = chunk.data
    if is_last_look and at_end and data and not data.endswith(b"\n"):
        data += b"\n"  # the job has ended, so this line will not grow any more
    if not data:
        return False
    parsed = metricsfile.parse(data)
    if parsed.consumed_bytes == 0:
        return False
    attempt.metrics_offset += min(parsed.consumed_bytes, len(chunk.data))
    attempt.metrics_skipped += parsed.skipped
    attempt.save(update_fields=["metrics_offset", "metrics_skipped"])
    _add_points(attempt, parsed.points)
    if parsed.checkpoints:
        _add_checkpoints(attempt, parsed.checkpoints)
    if parsed.progress:
        _note_progress(attempt, parsed.progress[-1])
    return not at_end


def _add_points(attempt: JobAttempt, points: list[metricsfile.Point]) -> None:
    by_name: dict[str, list[metricsfile.Point]] = defaultdict(list)
    for point in points:
        by_name[point.name[:100]].append(point)
    rows = {row.name: row for row in MetricSeries.objects.filter(attempt=attempt)}
    for name, added in by_name.items():
        row = rows.get(name)
        if row is None:
            if len(rows) >= MAX_SERIES:
                continue
            row = rows[name] = MetricSeries(attempt=attempt, name=name)
        series = metricsfile.Series.from_dict(row.data) if row.data else metricsfile.Series()
        series.add(added)
        row.data, row.count = series.to_dict(), row.count + len(added)
        row.last_step, row.last_value = added[-1].step, added[-1].value
        row.save()


def _add_checkpoints(attempt: JobAttempt, lines: list[metricsfile.CheckpointLine]) -> None:
    room = MAX_CHECKPOINTS - Checkpoint.objects.filter(attempt=attempt).count()
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(job_id=attempt.job_id, attempt=attempt, path=line.path[:1000], step=line.step, at=_time(line.at))
            for line in lines[: max(0, room)]
        ],
        ignore_conflicts=True,
    )
    last = lines[-1]
    step = f" at step {last.step:,}" if last.step is not None else ""
    event(attempt.job, "checkpoint", f"saved {last.path[:300]}{step}", attempt=attempt, at=_time(last.at))


def _note_progress(attempt: JobAttempt, line: metricsfile.ProgressLine) -> None:
    Job.objects.filter(pk=attempt.job_id, attempt_count=attempt.number).update(
        progress=line.share, progress_text=line.text[:100], updated_at=timezone.now()
    )


def _time(seconds: float | None) -> datetime:
    """The job's own clock, unless it is absurd."""
    now = timezone.now()
    if seconds is None or not 0 < seconds <= now.timestamp() + 86400:
        return now
    return datetime.fromtimestamp(seconds, UTC)

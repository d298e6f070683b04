"""What of a metrics file counts, and what is skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apps.jobs.metricsfile import MAX_LINE_BYTES, MAX_POINTS, Point, Series, parse


def test_points_checkpoints_and_progress_are_read():
    parsed = parse(
        b'{"step": 1, "name": "loss", "value": 4.5, "time": 100.5}\n'
        b'{"event": "checkpoint", "path": "a.npz", "step": 7}\n'
        b'{"event": "progress", "share": 0.4, "text": "step 4 of 10"}\n'
    )
    assert parsed.points == [Point("loss", 1, 4.5, 100.5)]
    assert (parsed.checkpoints[0].path, parsed.checkpoints[0].step) == ("a.npz", 7)
    assert (parsed.progress[0].share, parsed.progress[0].text) == (0.4, "step 4 of 10")
    assert parsed.skipped == 0


def test_a_torn_last_line_is_left_for_the_next_read():
    whole = b'{"name": "loss", "value": 1}\n'
    parsed = parse(whole + b'{"name": "loss", "val')
    assert (len(parsed.points), parsed.consumed_bytes, parsed.skipped) == (1, len(whole), 0)


def test_bad_lines_are_skipped_and_counted():
    bad = [
        b"not json",
        b"[1, 2]",
        b'{"name": "loss", "value": NaN}',
        b'{"name": "loss", "value": Infinity}',
        b'{"name": "loss", "value": 1e999}',
        b'{"name": "loss", "value": "4"}',
        b'{"name": "loss", "value": true}',
        b'{"name": "", "value": 1}',
        b'{"name": "a\\nb", "value": 1}',
        b'{"value": 1}',
        b'{"event": "checkpoint"}',
        b'{"event": "unknown"}',
        b"\xff\xfe\x00",
        b"[" * 50_000,
        b'{"name": "x", "value": 1, "pad": "' + b"x" * MAX_LINE_BYTES + b'"}',
    ]
    parsed = parse(b"\n".join([*bad, b'{"name": "loss", "value": 2}']) + b"\n")
    assert parsed.skipped == len(bad)
    assert parsed.points == [Point("loss", None, 2.0, None)]


def test_a_line_without_end_does_not_stop_the_reader_for_ever():
    parsed = parse(b"x" * (MAX_LINE_BYTES + 1))
    assert (parsed.consumed_bytes, parsed.skipped) == (MAX_LINE_BYTES + 1, 1)


@given(st.binary(max_size=500))
def test_any_bytes_are_harmless(data):
    parsed = parse(data)
    assert 0 <= parsed.consumed_bytes <= len(data)


def test_a_series_keeps_the_extremes_and_the_last_point_however_long_it_is():
    series = Series()
    for start in range(0, 100_000, 500):
        values = [0.0] * 500
        if start == 50_000:
            values[17] = 99.0
            values[400] = -99.0
        series.add(Point("x", start + i, value, None) for i, value in enumerate(values))
        series = Series.from_dict(series.to_dict())
    steps, values = series.columns()
    assert len(steps) == len(values) <= MAX_POINTS
    assert steps == sorted(steps)
    assert (max(values), steps[values.index(99.0)]) == (99.0, 50_017)
    assert (min(values), steps[values.index(-99.0)]) == (-99.0, 50_400)
    assert steps[-1] == 99_999
    assert series.to_dict()["count"] == 100_000

"""A job's own metrics as figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apps.web.figures.base import LineSeries, line_figure

MAX_CHARTS = 12
# What the field's common names mean, for the axis; anything else is shown under its own name.
_UNITS = {"loss": "nats", "val_loss": "nats", "tokens_per_s": "tokens/s", "learning_rate": "learning rate"}


def chart_groups(names: Sequence[str]) -> list[list[str]]:
    """Which metrics share a chart: all kinds of loss do, then throughput, then one chart each; at most twelve."""
    losses = [name for name in names if "loss" in name.lower()]
    losses.sort(key=lambda name: (name != "loss", name))
    rates = [name for name in names if name not in losses and "per_s" in name.lower()]
    rest = [name for name in names if name not in losses and name not in rates]
    groups = ([losses] if losses else []) + [[name] for name in (*rates, *rest)]
    return groups[:MAX_CHARTS]


def metric_figure(series: Sequence[tuple[str, Mapping[str, Any]]], *, uirevision: str) -> dict[str, Any]:
    """`series`: (name, columns of jobs.metricsfile.Series) of one chart, over the step."""
    lines = [LineSeries(name, data["steps"], data["values"]) for name, data in series if data]
    title = _UNITS.get(series[0][0], series[0][0]) if series else ""
    return line_figure(lines, x_title="step", y_title=title, uirevision=uirevision)

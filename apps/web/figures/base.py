"""Plotly figures as plain dicts with typed arrays. Pure. Colours, fonts and margins are the browser's part."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LineSeries:
    """`x` and `y` of one length; NaN in `y` is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def typed(values: Sequence[float], dtype: str = "f8") -> dict[str, str]:
    """An array as the browser reads it without parsing: little-endian bytes in base64."""
    array = np.asarray(values, dtype=f"<{dtype}")
    return {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode()}


def line_figure(
    series: Sequence[LineSeries], *, x_title: str, y_title: str, uirevision: str, log_y: bool = False
) -> dict[str, Any]:
    """Lines over one axis. No series, or none with points: no data, and the page says so."""
    data = [
        {
            "type": "scatter",
            "mode": "lines" if len(one.x) > 1 else "markers",
            "name": one.name,
            "x": typed(one.x),
            "y": typed(one.y),
        }
        for one in series
        if len(one.x)
    ]
    layout = {
        "uirevision": uirevision,
        "showlegend": len(data) > 1,
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {"title": {"text": y_title}, **({"type": "log"} if log_y else {})},
    }
    return {"data": data, "layout": layout}

"""How values are shown: `{% load show %}`."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core.units import format_bytes, format_duration

register = template.Library()

# Each state has a colour, a glyph and a word: never colour alone.
STATES = {
    "queued": ("pending", "○", "queued"),
    "dispatching": ("pending", "◔", "handing over"),
    "unknown": ("warn", "?", "unknown"),
    "pending": ("pending", "○", "pending"),
    "running": ("info", "●", "running"),
    "completing": ("info", "◑", "completing"),
    "completed": ("ok", "✓", "completed"),
    "failed": ("bad", "✗", "failed"),
    "cancelled": ("idle", "⊘", "cancelled"),
    "timed_out": ("bad", "⌛", "timed out"),
    "out_of_memory": ("bad", "✗", "out of memory"),
    "node_failed": ("bad", "✗", "node failed"),
    "preempted": ("warn", "↩", "preempted"),
    "deadline": ("bad", "⌛", "deadline"),
    "boot_failed": ("bad", "✗", "boot failed"),
    "lost": ("warn", "?", "lost"),
    # nodes
    "idle": ("ok", "○", "idle"),
    "mixed": ("info", "◐", "mixed"),
    "allocated": ("info", "●", "allocated"),
    "down": ("bad", "✗", "down"),
    "drained": ("warn", "▬", "drained"),
    "draining": ("warn", "▭", "draining"),
    "planned": ("idle", "·", "planned"),
}


@register.simple_tag
def state(name: str, wanted: str = "", held: bool = False) -> SafeString:
    """A chip: glyph and word, e.g. `● running`, `⊘ cancelling …`, `○ pending, held`."""
    colour, glyph, word = STATES.get(name, ("idle", "?", name.replace("_", " ")))
    if wanted == "cancel":
        colour, glyph, word = "warn", "⊘", "cancelling …"
    elif wanted == "drain":
        colour, glyph, word = "warn", "▭", "draining …"
    elif wanted == "resume":
        colour, glyph, word = "info", "◌", "resuming …"
    elif wanted in {"hold", "release"}:
        word += f", {'holding' if wanted == 'hold' else 'releasing'} …"
    elif held:
        word += ", held"
    return format_html('<span class="chip chip-{}"><span aria-hidden="true">{}</span> {}</span>', colour, glyph, word)


@register.filter
def duration(seconds: float | None) -> str:
    return format_duration(seconds)


@register.filter
def size(size_bytes: int | None) -> str:
    return format_bytes(size_bytes)


@register.filter
def bandwidth(bytes_per_s: float | None) -> str:
    """Makers count in powers of ten: `3.35 TB/s`."""
    if bytes_per_s is None:
        return "—"
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"


@register.filter
def hours(value: Decimal | None) -> str:
    """Three significant digits, so that a minute of one CPU is not "0.0"."""
    return number(None if value is None else float(value))


@register.filter
def number(value: float | None) -> str:
    """Three significant digits, with separators, and without an exponent where people can read it: 112,000, 0.00178."""
    if value is None:
        return "—"
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if not 1e-6 <= abs(rounded) < 1e12:
        return f"{value:.3g}"
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    return f"{Decimal(f'{value:.3g}'):f}"


@register.filter
def percent(share: float | None) -> str:
    if share is None:
        return "—"
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


@register.simple_tag
def when(at: datetime | None, style: str = "full") -> SafeString | str:
    """A time, put into the viewer's zone by the browser; `style` ago shows how long it is since."""
    if at is None:
        return "—"
    text = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" data-style="{}" title="{}">{}</time>', at.isoformat(), style, text, text)


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The page's own query string with these parameters changed; None drops one."""
    params = context["request"].GET.copy()
    for name, value in changes.items():
        params.pop(name, None)
        if value is not None:
            params[name] = str(value)
    return "?" + params.urlencode()

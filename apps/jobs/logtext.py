"""A job's output as people read it: colours as classes, progress bars folded, everything else harmless. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# CSI sequences, OSC sequences (titles, links) with their terminator, and other two-character escapes.
_ESCAPE = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ERROR = re.compile(
    r"\b(error|exception|traceback|fatal|failed|failure|panic|segmentation fault|out of memory|oom|killed|nan)\b", re.I
)
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
MAX_LINE = 4000


@dataclass(frozen=True)
class Line:
    """`spans`: (CSS classes, text), in order; `is_error`: worth jumping to."""

    spans: tuple[tuple[str, str], ...]
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.spans)


def plain(data: bytes) -> str:
    """The text without colours and other escapes, bars folded, control characters as ·."""
    return "\n".join(line.text for line in render(data))


def render(data: bytes) -> list[Line]:
    """One Line for each line of output. A last line without its end counts as a line."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    lines, classes = [], ""
    for raw in text.removesuffix("\n").split("\n"):
        spans, classes = _spans(_last_state(raw), classes)
        shown = "".join(part for _, part in spans)
        lines.append(Line(spans, is_error_line(shown)))
    return lines


def is_error_line(text: str) -> bool:
    return bool(_ERROR.search(text[:MAX_LINE]))


def _last_state(line: str) -> str:
    """What a terminal would show at the end: `\\r` goes back to the start and writes over it."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


def _spans(line: str, classes: str) -> tuple[tuple[tuple[str, str], ...], str]:
    spans: list[tuple[str, str]] = []
    place = 0
    if len(line) > MAX_LINE:
        line = line[:MAX_LINE] + f" … ({len(line) - MAX_LINE:,} characters more)"
    for match in _ESCAPE.finditer(line):
        _add(spans, classes, line[place : match.start()])
        if match[2] == "m":
            classes = _after_sgr(match[1] or "0", classes)
        place = match.end()
    _add(spans, classes, line[place:])
    return tuple(spans), classes


def _add(spans: list[tuple[str, str]], classes: str, text: str) -> None:
    text = _CONTROL.sub("·", text)
    if text:
        spans.append((classes, text))


def _after_sgr(codes: str, classes: str) -> str:
    """The classes after `ESC [ codes m`: bold and the sixteen colours; other colours are left as they are."""
    current = set(classes.split())
    numbers = iter(codes.replace(":", ";").split(";"))
    for code in numbers:
        number = int(code) if code.isdecimal() else 0
        if number == 0:
            current.clear()
        elif number == 1:
            current.add("ansi-bold")
        elif number == 22:
            current.discard("ansi-bold")
        elif number in {38, 48}:  # extended colours: skip their arguments
            for _ in range(1 if next(numbers, "") == "5" else 3):
                next(numbers, "")
        elif 30 <= number <= 37 or 90 <= number <= 97 or number == 39:
            current = {name for name in current if name == "ansi-bold"}
            if number != 39:
                current.add(f"ansi-{_COLOURS[number % 10]}")
    return " ".join(sorted(current))

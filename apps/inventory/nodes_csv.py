"""A list of nodes as spreadsheets save it, read into plain rows. Pure.

Tolerates what spreadsheets do: a byte order mark, UTF-16, semicolons or tabs between columns, empty rows at the end.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from apps.core.errors import InvalidInput

MAX_BYTES = 8 * 1024 * 1024
MAX_ROWS = 20_000
REQUIRED = ("name",)
# Column in the file -> what it is; other columns are an error rather than silently lost.
COLUMNS = {
    "name": "name",
    "cluster": "cluster",
    "rack": "rack",
    "position": "position_u",
    "position_u": "position_u",
    "face": "face",
    "u_height": "height_u",
    "height_u": "height_u",
    "serial": "serial",
    "model": "model",
    "node_type": "node_type",
    "gpu_model": "accelerator_model",
    "gpu_count": "accelerator_count",
    "comment": "comment",
}
_NUMBERS = {"position_u": (1, 100), "height_u": (1, 100), "accelerator_count": (0, 1024)}


@dataclass(frozen=True)
class NodeRow:
    """`line` is the row's line in the file; None and "" are what the file does not say."""

    line: int
    name: str
    cluster: str = ""
    rack: str = ""
    position_u: int | None = None
    height_u: int | None = None
    face: str = "front"
    serial: str = ""
    model: str = ""
    node_type: str = ""
    accelerator_model: str = ""
    accelerator_count: int | None = None
    comment: str = ""


def parse_nodes_csv(data: bytes) -> list[NodeRow]:
    """Raises InvalidInput (field `file`) with each line that is wrong."""
    text = _decode(data)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    rows: list[NodeRow] = []
    problems: list[str] = []
    columns: list[str] = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not columns:
                columns = _columns([cell.strip() for cell in cells])
            elif len(rows) >= MAX_ROWS:
                raise InvalidInput({"file": f"There are more than {MAX_ROWS:,} rows; split the file."})
            else:
                row = _row([cell.strip() for cell in cells], columns, reader.line_num, problems)
                rows += [row] if row else []
    except csv.Error as error:
        raise InvalidInput({"file": f"line {reader.line_num}: This is no CSV: {error}."}) from None
    if not columns:
        raise InvalidInput({"file": "The file is empty; its first line must name the columns."})
    if not rows and not problems:
        problems.append("There is no row below the names of the columns.")
    if problems:
        raise InvalidInput({"file": problems[:50]})
    return rows


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise InvalidInput({"file": f"The file has {len(data):,} bytes; at most {MAX_BYTES:,} are read."})
    is_utf16 = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
    try:
        text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput({"file": "This is neither UTF-8 nor UTF-16 text; save it as CSV UTF-8."}) from None
    if "\0" in text:
        raise InvalidInput({"file": "There are NUL characters in it: this is no text file."})
    return text


def _delimiter(text: str) -> str:
    """The one that parts the header most: guessing from all of the text goes wrong with comments in it."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=header.count)


def _columns(names: list[str]) -> list[str]:
    problems = []
    found: list[str] = []
    for number, name in enumerate(names, start=1):
        column = COLUMNS.get(name.lower())
        if column is None:
            problems.append(f"line 1: column {number}: There is no column {name[:60]!r}; known: {', '.join(COLUMNS)}.")
        elif column in found:
            problems.append(f"line 1: column {number}: {name[:60]!r} stands twice among the columns.")
        found.append(column or "")
    problems += [f"line 1: The column {name!r} is missing." for name in REQUIRED if name not in found]
    if problems:
        raise InvalidInput({"file": problems})
    return found


def _row(cells: list[str], columns: list[str], line: int, problems: list[str]) -> NodeRow | None:
    if len(cells) > len(columns):
        problems.append(f"line {line}: There are {len(cells)} values and {len(columns)} columns.")
        return None
    values: dict[str, str | int | None] = {}
    good = True
    for column, cell in zip(columns, cells, strict=False):
        if column not in _NUMBERS:
            if cell or column == "name":
                values[column] = cell
            continue
        if not cell:
            continue
        low, high = _NUMBERS[column]
        if not (cell.isascii() and cell.isdigit() and len(cell) < 9 and low <= int(cell) <= high):
            problems.append(f"line {line}: {column}: {cell[:40]!r} is no whole number from {low} to {high}.")
            good = False
        else:
            values[column] = int(cell)
    if not values.get("name"):
        problems.append(f"line {line}: name: A node must have a name.")
        good = False
    if values.get("face", "front") not in {"front", "rear"}:
        problems.append(f"line {line}: face: write front or rear, not {str(values['face'])[:40]!r}.")
        good = False
    return NodeRow(line=line, **values) if good else None  # type: ignore[arg-type]

"""YAML read strictly, with the line of everything, so that a mistake can be shown where it was made. Pure.

A `Reader` collects problems instead of stopping at the first: who mends a file wants to see them all.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 30
MAX_NODES = 400_000
MAX_PROBLEMS = 100

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {yaml.MappingNode: "a mapping (name: value)", yaml.SequenceNode: "a list", yaml.ScalarNode: "one value"}


@dataclass(frozen=True, order=True)
class Problem:
    """`field` is the path to the value, e.g. `clusters[0].nodes[1].type`; lines count from 1."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field}: {self.message}" if self.field else f"line {self.line}: {self.message}"


class Unreadable(Exception):
    """The text is no YAML that we take at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass
class Reader:
    problems: list[Problem] = field(default_factory=list)
    _visits: int = 0

    def fail(self, node: yaml.Node, where: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(line_of(node), where, message))

    def mapping(self, node: yaml.Node, where: str, known: Mapping[str, bool]) -> dict[str, yaml.Node] | None:
        """The values by key. `known` says which keys there are and whether each is required."""
        if not self._is(node, yaml.MappingNode, where):
            return None
        values: dict[str, yaml.Node] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                self.fail(key, _join(where, name or "?"), f"There is no such key here{_suggest(name, known)}.")
            elif name in values:
                self.fail(key, _join(where, name), f"This key stands here twice; it is also on line {lines[name]}.")
            else:
                values[name], lines[name] = value, line_of(key)
        for name, is_required in known.items():
            if is_required and name not in values:
                self.fail(node, _join(where, name), "This key is missing.")
        return values

    def sequence(self, node: yaml.Node | None, where: str) -> Iterator[tuple[str, yaml.Node]]:
        """Each item with its path; nothing for a key that is not there or is empty."""
        if node is None or is_null(node) or not self._is(node, yaml.SequenceNode, where):
            return
        for number, item in enumerate(node.value):
            yield f"{where}[{number}]", item

    def text(self, node: yaml.Node | None, where: str, *, max_length: int, default: str = "") -> str:
        if node is None or is_null(node):
            return default
        if not self._is(node, yaml.ScalarNode, where):
            return default
        value = str(node.value)
        if not value.isprintable() or value != value.strip():
            self.fail(node, where, "Write printable characters on one line, without spaces at the ends.")
        elif len(value) > max_length:
            self.fail(node, where, f"This is {len(value):,} characters long; at most {max_length} fit.")
        else:
            return value
        return default

    def number(self, node: yaml.Node | None, where: str, *, low: int, high: int) -> int | None:
        """None where the key is missing, empty or wrong."""
        if node is None or is_null(node):
            return None
        if not self._is(node, yaml.ScalarNode, where):
            return None
        if node.tag != "tag:yaml.org,2002:int" or not str(node.value).lstrip("+-").isdecimal():
            self.fail(node, where, f"{str(node.value)[:40]!r} is not a whole number.")
            return None
        text = str(node.value)
        value = int(text) if len(text) < 25 else high + 1
        if not low <= value <= high:
            self.fail(node, where, f"{text[:40]} is out of range; it must be {low:,} to {high:,}.")
            return None
        return value

    def boolean(self, node: yaml.Node | None, where: str, *, default: bool) -> bool:
        if node is None or is_null(node):
            return default
        if not self._is(node, yaml.ScalarNode, where):
            return default
        if node.tag != "tag:yaml.org,2002:bool":
            self.fail(node, where, f"{str(node.value)[:40]!r} is neither true nor false.")
            return default
        return str(node.value).lower() in {"true", "yes", "on"}

    def _is(self, node: yaml.Node, kind: type[yaml.Node], where: str) -> bool:
        # Aliases make a small file a huge one; what counts is how much of it we look at.
        self._visits += 1
        if self._visits > MAX_NODES:
            raise Unreadable(Problem(line_of(node), where, "The file stands for too much: look at its aliases."))
        if isinstance(node, kind):
            return True
        found = "nothing" if is_null(node) else _WORDS[type(node)]
        self.fail(node, where, f"Here must be {_WORDS[kind]}, not {found}.")
        return False


def compose(data: bytes) -> yaml.Node:
    """The file's one document. Raises Unreadable."""
    if len(data) > MAX_BYTES:
        raise Unreadable(Problem(1, "", f"The file has {len(data):,} bytes; at most {MAX_BYTES:,} are read."))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Unreadable(Problem(line, "", "This is not UTF-8 text; save the file as UTF-8.")) from None
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(Problem(mark.line + 1 if mark else 1, "", f"This is not valid YAML: {why}.")) from None
    except yaml.YAMLError as error:
        line = text[: getattr(error, "position", 0)].count("\n") + 1
        raise Unreadable(Problem(line, "", "This is not valid YAML: a character that may not be there.")) from None
    if root is None:
        raise Unreadable(Problem(1, "", "The file is empty."))
    return root


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _check_depth(text: str) -> None:
    """Before a tree is built of it: the composer calls itself once a level."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise Unreadable(Problem(line, "", f"More than {MAX_DEPTH} levels deep."))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _join(where: str, name: str) -> str:
    return f"{where}.{name[:60]}" if where else name[:60]


def _suggest(name: str, known: Mapping[str, bool]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}" if close else f"; there are: {', '.join(known)}"

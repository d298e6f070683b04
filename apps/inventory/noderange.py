"""Names as Slurm writes them, `gpu[001-128,200]`, to the names themselves. Pure."""

from __future__ import annotations

import re

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from apps.core.errors import InvalidInput

MAX_NAMES = 20_000
# One name is a host name: letters, digits, `-`, `_` and `.`; ranges stand in brackets.
_WRITTEN = re.compile(r"[A-Za-z0-9._\-\[\],]{1,4000}")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)-(\d+)")


def node_names(text: str, *, field: str = "names", limit: int = MAX_NAMES) -> tuple[str, ...]:
    """The names, each once, in their order. Raises InvalidInput with `field` for what cannot be read or is too many."""
    text = text.strip()
    if not _WRITTEN.fullmatch(text):
        raise InvalidInput({field: f"{text[:80]!r} is no list of names; write it like gpu[001-128,200]."})
    # Counted before it is expanded: a slip like gpu[1-999999999] must not fill the memory.
    if _how_many(text) > limit:
        raise InvalidInput({field: f"{text[:80]!r} stands for more than {limit:,} names."})
    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise InvalidInput(
            {field: f"{text[:80]!r} cannot be read ({error}); write it like gpu[001-128,200]."}
        ) from None


def is_range(text: str) -> bool:
    return "[" in text or "," in text


def folded(names: list[str] | tuple[str, ...]) -> str:
    """Names to the short form: gpu001, gpu002 -> gpu[001-002]."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _how_many(text: str) -> int:
    """Never too few: the product over all brackets of the text, commas outside them counted as well."""
    count = 1
    for inner in _BRACKETS.findall(text):
        count *= max(1, sum(_width(part) for part in inner.split(",")))
    return count + _BRACKETS.sub("", text).count(",")


def _width(part: str) -> int:
    match = _RANGE.fullmatch(part)
    return 1 if match is None else max(1, int(match[2]) - int(match[1]) + 1)

"""What can go wrong in the domain. No HTTP: api/problems.py and web/render.py translate. Pure."""

from __future__ import annotations

from collections.abc import Mapping


class DomainError(Exception):
    """Base of all errors a person may see. `title` is the kind in words; the message says what and how to mend it."""

    kind = "error"
    title = "Something went wrong"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(DomainError):
    """What was handed in cannot be used. `fields` maps a field's name to its messages; "" is the whole."""

    kind = "invalid-input"
    title = "Invalid input"

    def __init__(self, fields: Mapping[str, list[str] | str]) -> None:
        self.fields = {k: [v] if isinstance(v, str) else list(v) for k, v in fields.items()}
        super().__init__("; ".join(f"{k}: {m}" if k else m for k, ms in self.fields.items() for m in ms))


class NotAllowed(DomainError):
    """The person can see the thing and may not do this to it."""

    kind = "not-allowed"
    title = "Not allowed"


class NotFound(DomainError):
    """There is no such thing, or the person may not know of it: the two are never told apart."""

    kind = "not-found"
    title = "Not found"


class Conflict(DomainError):
    """The thing is in a state in which this cannot be done, or somebody else changed it first."""

    kind = "conflict"
    title = "Conflict"


class OverLimit(DomainError):
    """It would go over an allocation or a limit."""

    kind = "over-limit"
    title = "Over the limit"


class Unavailable(DomainError):
    """Something this needs does not answer; nothing was changed and it can be tried again."""

    kind = "unavailable"
    title = "Temporarily unavailable"

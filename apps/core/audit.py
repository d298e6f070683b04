"""Who did what to what, before and after, when and from where. Actions write it themselves, in their transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from apps.core.models import AuditEntry


@dataclass(frozen=True)
class Origin:
    """From where the running request comes: `via` is web, api, command or worker."""

    via: str = "worker"
    ip: str | None = None


_NOBODY = Origin()
_origin: ContextVar[Origin] = ContextVar("audit_origin", default=_NOBODY)


@contextmanager
def audit_origin(via: str, ip: str | None = None) -> Iterator[None]:
    token = _origin.set(Origin(via, ip))
    try:
        yield
    finally:
        _origin.reset(token)


def record(
    verb: str,
    *,
    by: Any,
    target: Any,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    project_id: int | None = None,
) -> None:
    """Append one audit row. `by` is a User or None (the product itself); secrets must not be in before/after.

    `target` is a row with `public_id` or a pk; its label and name are kept as text so that the row outlives it.
    """
    AuditEntry.objects.create(
        **audit_fields(verb, by=by, target=target, before=before, after=after, project_id=project_id)
    )


def audit_fields(
    verb: str,
    *,
    by: Any,
    target: Any,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    project_id: int | None = None,
) -> dict[str, Any]:
    """The columns of one audit row, for callers that insert many at once."""
    origin = _origin.get()
    return {
        "verb": verb,
        "actor": by,
        "actor_name": by.get_username() if by is not None else "switchyard",
        "target_type": target._meta.model_name,
        "target_id": str(getattr(target, "public_id", None) or target.pk),
        "target_name": str(target)[:200],
        "project_id": project_id,
        "before": dict(before or {}),
        "after": dict(after or {}),
        "via": origin.via,
        "ip": origin.ip,
    }

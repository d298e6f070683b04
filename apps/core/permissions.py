"""The one table of who may do what. Pure; deny by default: a verb that is not here is allowed to nobody.

Roles are what a person is *towards the thing at hand*: `viewer`, `member`, `lead` of its project, `owner` who submitted
the job, `operator` of the site, `person` anybody signed in. accounts.permissions works them out. `job` is nobody: it is
a job's own script, towards its own output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from apps.core.errors import NotAllowed

PERSON: Final = "person"
VIEWER: Final = "viewer"
MEMBER: Final = "member"
LEAD: Final = "lead"
OWNER: Final = "owner"
OPERATOR: Final = "operator"
JOB: Final = "job"

ALLOWED: Final[dict[str, frozenset[str]]] = {
    # jobs
    "job.view": frozenset({VIEWER, MEMBER, LEAD, OWNER, OPERATOR}),
    "job.submit": frozenset({MEMBER, LEAD}),
    "job.cancel": frozenset({OWNER, LEAD, OPERATOR}),
    "job.hold": frozenset({OWNER, LEAD, OPERATOR}),
    "job.release": frozenset({OWNER, LEAD, OPERATOR}),
    "job.rerun": frozenset({MEMBER, LEAD}),
    "output.append": frozenset({JOB}),
    # projects
    "project.view": frozenset({VIEWER, MEMBER, LEAD, OPERATOR}),
    "project.create": frozenset({OPERATOR}),
    "project.edit": frozenset({LEAD, OPERATOR}),
    "project.members": frozenset({LEAD, OPERATOR}),
    "allocation.grant": frozenset({OPERATOR}),
    # people
    "person.list": frozenset({OPERATOR}),
    "person.add": frozenset({OPERATOR}),
    "person.edit": frozenset({OPERATOR}),
    "person.reset_password": frozenset({OPERATOR}),
    "token.own": frozenset({PERSON}),
    # the site
    "inventory.view": frozenset({PERSON}),
    "inventory.edit": frozenset({OPERATOR}),
    "node.drain": frozenset({OPERATOR}),
    "node.resume": frozenset({OPERATOR}),
    "cluster.view": frozenset({PERSON}),
    "cluster.edit": frozenset({OPERATOR}),
    "audit.view": frozenset({OPERATOR}),
}

_WHO: Final = {
    PERSON: "anybody signed in",
    VIEWER: "viewers of the project",
    MEMBER: "members of the project",
    LEAD: "leads of the project",
    OWNER: "the person who submitted it",
    OPERATOR: "operators of the site",
    JOB: "the job itself",
}


def site_roles(user: Any) -> frozenset[str]:
    """What `user` is towards the site as a whole, whatever project is meant."""
    return frozenset({PERSON, OPERATOR}) if user.is_operator else frozenset({PERSON})


def is_allowed(verb: str, roles: Iterable[str]) -> bool:
    return not ALLOWED.get(verb, frozenset()).isdisjoint(roles)


def require(verb: str, roles: Iterable[str]) -> None:
    """Raise NotAllowed, saying who may, unless one of `roles` may do `verb`."""
    if is_allowed(verb, roles):
        return
    who = " and ".join(_WHO[role] for role in sorted(ALLOWED.get(verb, frozenset()), key=list(_WHO).index))
    raise NotAllowed(f"Only {who} may do this ({verb})." if who else f"Nobody may do this ({verb}).")

"""Which roles a person has, and which projects they may see. The table of rights itself is core/permissions.py."""

from __future__ import annotations

from django.db.models import QuerySet

from apps.accounts.models import Membership, Project, User
from apps.core.errors import NotFound
from apps.core.permissions import ALLOWED, OPERATOR, require, site_roles


def roles_in(user: User, project: Project) -> frozenset[str]:
    """Roles towards the site and towards this project."""
    role = Membership.objects.filter(user=user, project=project).values_list("role", flat=True).first()
    return site_roles(user) | ({role} if role else set())


def require_in(verb: str, user: User, project: Project) -> None:
    """Raise NotFound when the person may not know of the project, NotAllowed when they may not do this in it."""
    roles = roles_in(user, project)
    if not roles & ALLOWED["project.view"]:
        raise NotFound(f"There is no project {project.name}.")
    require(verb, roles)


def projects_where(user: User, verb: str) -> QuerySet[Project]:
    """The projects in which this person may do `verb`."""
    roles = ALLOWED.get(verb, frozenset())
    if user.is_operator and OPERATOR in roles:
        return Project.objects.all()
    return Project.objects.filter(memberships__user=user, memberships__role__in=roles)


def visible_projects(user: User) -> QuerySet[Project]:
    return projects_where(user, "project.view")


def visible_project(user: User, name: str) -> Project:
    """Raises NotFound when there is none, or none that this person may know of."""
    project = visible_projects(user).filter(name=name).first()
    if project is None:
        raise NotFound(f"There is no project {name}.")
    return project


def project_for(user: User, name: str, verb: str) -> Project:
    """The project, to do `verb` in it. Raises NotFound, or NotAllowed when the person may only see it."""
    project = visible_project(user, name)
    require(verb, roles_in(user, project))
    return project

"""The first operator and the first project of an install."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from django.db import transaction

from apps.accounts.models import Allocation, HourUnit, Membership, Project, Role, User
from apps.core.audit import record

OPERATOR_NAME = "admin"
PROJECT_NAME = "demo"


@dataclass(frozen=True)
class FirstRows:
    """`password_file` is None once the password is not the generated one any more, or was made elsewhere."""

    operator: User
    project: Project
    password_file: Path | None


@transaction.atomic
def make_first_rows() -> FirstRows:
    """Make what is missing; what is there is left as it is."""
    operator = User.objects.filter(is_operator=True, is_active=True).order_by("id").first()
    if operator is None:
        operator = _make_operator()
    project = Project.objects.filter(name=PROJECT_NAME).first() or _make_project(operator)
    path = password_file()
    is_current = path.exists() and operator.check_password(path.read_text().strip())
    return FirstRows(operator, project, path if is_current else None)


def password_file() -> Path:
    return Path(settings.SWITCHYARD.state_dir) / "first_password"


def _make_operator() -> User:
    password = secrets.token_urlsafe(15)
    path = password_file()
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(password + "\n")
    operator = User.objects.create_user(OPERATOR_NAME, password=password, is_operator=True)
    record("person.add", by=None, target=operator, after={"username": OPERATOR_NAME, "is_operator": True})
    return operator


def _make_project(operator: User) -> Project:
    project = Project.objects.create(name=PROJECT_NAME, title="A project to try things in")
    Membership.objects.create(project=project, user=operator, role=Role.LEAD)
    for unit, granted in ((HourUnit.GPU, 100), (HourUnit.CPU, 1000)):
        Allocation.objects.create(project=project, unit=unit, granted=Decimal(granted), note="to begin with")
    record("project.create", by=None, target=project, after={"name": PROJECT_NAME}, project_id=project.pk)
    return project

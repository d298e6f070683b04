"""Which jobs a page of a list shows, at a cost that does not grow with the table.

`visible_jobs` is a condition with an OR in it, and PostgreSQL reads no index in order through an OR: it would walk all
the newest jobs to find the few of a small project. So each part of what a person may see (each project, and their own
jobs) is asked for its own next rows, and of these the page takes the first.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from apps.accounts.models import Membership, User
from apps.jobs.models import Job

# Beyond this many projects, asking each of them costs more than walking.
MAX_PARTS = 40


def visible_parts(user: User) -> list[QuerySet[Job]]:
    """Together they are `visible_jobs(user)`; each by itself is one range of an index."""
    if user.is_operator:
        return [Job.objects.all()]
    projects = list(Membership.objects.filter(user=user).order_by().values_list("project_id", flat=True))
    own = Job.objects.filter(submitted_by=user)
    if len(projects) > MAX_PARTS:
        return [Job.objects.filter(project_id__in=projects), own]
    return [*(Job.objects.filter(project_id=pk) for pk in projects), own]


def first_pks(parts: list[QuerySet[Job]], condition: Q, *, newest_first: bool, count: int) -> QuerySet[Any]:
    """Pks of the first `count` jobs of `parts` that meet the condition: a subquery for `pk__in`."""
    order = "-id" if newest_first else "id"
    heads = [part.filter(condition).order_by(order).values_list("id", flat=True)[:count] for part in parts]
    if len(heads) == 1:
        return heads[0]
    return heads[0].union(*heads[1:]).order_by(order)[:count]


def count_up_to(parts: list[QuerySet[Job]], condition: Q, cap: int) -> int:
    """How many jobs of `parts` meet the condition, counted no further than `cap`."""
    heads = [part.filter(condition).order_by().values_list("id", flat=True)[:cap] for part in parts]
    if len(heads) == 1:
        return heads[0].count()
    return min(cap, heads[0].union(*heads[1:]).count())

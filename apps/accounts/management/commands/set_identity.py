"""`manage.py set_identity USERNAME CLUSTER UNIX_USER`: as whom a person's jobs run on a cluster."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.actions import set_unix_identity
from apps.accounts.models import User
from apps.core.errors import DomainError
from apps.inventory.models import Cluster


class Command(BaseCommand):
    help = "Says as which unix user a person's jobs run on a cluster; jobs of that user found there become theirs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")
        parser.add_argument("cluster")
        parser.add_argument("unix_user", help="empty text takes the identity away")

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(username=options["username"]).first()
        cluster = Cluster.objects.filter(name=options["cluster"]).first()
        if user is None or cluster is None:
            raise CommandError(f"There is no {'person' if user is None else 'cluster'} of that name.")
        try:
            set_unix_identity(user, cluster, options["unix_user"], by=None)
        except DomainError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"{user.username} is {options['unix_user'] or 'nobody'} on {cluster.name}.")

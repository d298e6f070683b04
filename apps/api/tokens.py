"""Tokens of scripts. A module of its own: the settings name it, and REST framework loads what they name very early."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone
from knox.auth import TokenAuthentication as KnoxTokenAuthentication
from rest_framework import exceptions

from apps.accounts.models import ApiToken, User

USED_AT_MOST_EVERY = timedelta(minutes=1)


class TokenAuthentication(KnoxTokenAuthentication):
    """`Authorization: Bearer swy_...`. Notes when a token was last used, at most once a minute."""

    def authenticate_credentials(self, token: bytes) -> tuple[User, ApiToken]:
        if not (token.isascii() and token.decode("ascii").isprintable()):
            raise exceptions.AuthenticationFailed("Invalid token.")
        user, row = super().authenticate_credentials(token)
        now = timezone.now()
        if row.last_used_at is None or row.last_used_at < now - USED_AT_MOST_EVERY:
            unused = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - USED_AT_MOST_EVERY)
            ApiToken.objects.filter(unused, pk=row.pk).update(last_used_at=now)
        return user, row

    def _cleanup_token(self, auth_token: ApiToken) -> bool:
        """Whether it has expired. Its row stays, so that its owner sees what became of it."""
        return auth_token.expiry is not None and auth_token.expiry < timezone.now()

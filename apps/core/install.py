"""Who this install is to the outside."""

from __future__ import annotations

import secrets

from apps.core.models import Install


def install_id() -> str:
    """Eight hexadecimal digits, made once and kept in the database: the mark in the tokens of the jobs we submit."""
    install, _ = Install.objects.get_or_create(pk=1, defaults={"install_id": secrets.token_hex(4)})
    return install.install_id

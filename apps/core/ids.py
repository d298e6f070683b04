"""Public ids: what a person sees in a URL. They never change, and say nothing about how many there are."""

from __future__ import annotations

import secrets

# Crockford's base 32: no I, L, O, U, so that an id survives being read aloud.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str, length: int = 12) -> str:
    """`job-5x0k2m8q4r7t`: 60 random bits; a unique constraint stands behind it."""
    return f"{prefix}-{''.join(secrets.choice(_ALPHABET) for _ in range(length))}"

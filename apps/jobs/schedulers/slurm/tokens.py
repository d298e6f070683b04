"""Short-lived tokens for slurmrestd, one a person: minted from the site's key, or got from a command or a file.

Whoever holds the key is root of the cluster: it is read where a token is minted, and kept nowhere else.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import jwt

from apps.jobs.schedulers.base import SchedulerUnavailable

LIFE_S = 600
# A token is renewed while it still lasts this long: longer than any request.
RENEW_S = 120
_COMMAND_TIMEOUT_S = 20


class Tokens(Protocol):
    def token(self, user: str, *, fresh: bool = False) -> str:
        """A token for this unix user that lasts longer than a request. `fresh`: the last one was refused."""
        ...


@dataclass(frozen=True)
class _Kept:
    token: str
    until: float


class MintedTokens:
    """HS256 tokens from the cluster's key; claims as `scontrol token` makes them: exp, iat, sun."""

    def __init__(self, key_file: str) -> None:
        self._key_file = Path(key_file)
        self._kept: dict[str, _Kept] = {}

    def token(self, user: str, *, fresh: bool = False) -> str:
        kept = self._kept.get(user)
        if kept is not None and not fresh and kept.until - time.time() > RENEW_S:
            return kept.token
        now = int(time.time())
        claims = {"exp": now + LIFE_S, "iat": now, "sun": user}
        # Read each time, since a site may change its key; a token a person every few minutes costs nothing.
        token = jwt.encode(claims, self._key(), algorithm="HS256")
        self._kept[user] = _Kept(token, now + LIFE_S)
        return token

    def _key(self) -> bytes:
        try:
            key = self._key_file.read_bytes()
        except OSError as error:
            raise SchedulerUnavailable(
                f"the cluster's JWT key cannot be read by this process ({error.strerror}): {self._key_file}"
            ) from None
        if len(key) < 16:
            raise SchedulerUnavailable(f"the cluster's JWT key is shorter than 16 bytes: {self._key_file}")
        return key


class CommandTokens:
    """A site's own way: a command that is given the user's name as its last argument and prints a token."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._kept: dict[str, _Kept] = {}

    def token(self, user: str, *, fresh: bool = False) -> str:
        kept = self._kept.get(user)
        if kept is not None and not fresh and kept.until - time.time() > RENEW_S:
            return kept.token
        try:
            done = subprocess.run(
                [*self._command, user], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SchedulerUnavailable(f"the token command cannot be run: {error}") from None
        token = done.stdout.strip().removeprefix("SLURM_JWT=")
        if done.returncode != 0 or token.count(".") != 2:
            # What it printed may hold a secret, so it is not told.
            raise SchedulerUnavailable(f"the token command gave no token (exit code {done.returncode})")
        self._kept[user] = _Kept(token, expiry(token) or time.time() + LIFE_S)
        return token


class FileTokens:
    """One token for everything, from a file that the site renews: for looking only, or for a single person."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def token(self, user: str, *, fresh: bool = False) -> str:
        try:
            token = self._path.read_text().strip().removeprefix("SLURM_JWT=")
        except OSError as error:
            raise SchedulerUnavailable(f"the token file cannot be read ({error.strerror}): {self._path}") from None
        if token.count(".") != 2:
            raise SchedulerUnavailable(f"the token file holds no token: {self._path}")
        return token


class NoTokens:
    """A slurmrestd that trusts who comes in over its unix socket (rest_auth/local)."""

    def token(self, user: str, *, fresh: bool = False) -> str:
        return ""


def expiry(token: str) -> float | None:
    """When a token runs out, unix seconds; None for one that does not say."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return None
    found = claims.get("exp")
    return float(found) if isinstance(found, (int, float)) else None


def key_is_open(path: str) -> bool:
    """Whether more than one user's processes can read the key, as far as can be seen from here.

    Run as root, this process shares its user with the rest of the product, so root counts as open.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(mode & 0o077) or os.geteuid() == 0

"""slurmrestd over TCP or a unix socket: finds the newest API version both sides know, and tells failures apart.

Every failure becomes one of the SchedulerErrors with a sentence for operators. Tokens and scripts are in none of them.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import jwt

from apps.jobs.schedulers.base import SchedulerError, SchedulerUnavailable
from apps.jobs.schedulers.slurm import translate
from apps.jobs.schedulers.slurm.tokens import Tokens

OLDEST, NEWEST = 38, 44
PING_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
# 22.05 takes 9 s to say that slurmctld is down; a submit must outlast that, and end well before its claim does.
DEFAULT_TIMEOUT_S = 30.0
VERSION_KEPT_S = 600.0
MAX_REPLY_BYTES = 512 * 1024**2
_AUTH_TEXTS = ("authentication", "unauthorized", "invalid token", "expired")
# slurm_errno.h: what means that the daemon behind slurmrestd is not there, whatever was asked.
_DOWN_CODES: Final = frozenset({1033, *range(1800, 1807), 1900, 1901, 5004, 7000, 7001, 7002, 7004})
_AUTH_CODES: Final = frozenset({1007, 1008, 1010, 1011, 6000, 6004})


class NotThere(SchedulerError):
    """slurmrestd answered, and what was asked for does not exist."""


class Refused(SchedulerError):
    """Slurm said no to what was asked. `code` is its error number, None where it gave none; `body` its whole answer."""

    def __init__(self, text: str, code: int | None = None, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.body = body or {}


class NothingAsked(SchedulerUnavailable):
    """No request reached Slurm, or it was turned away at the door: surely nothing was carried out."""


class ReplyLost(SchedulerUnavailable):
    """The request went out and its answer did not come back whole: whether it was carried out is not known."""


@dataclass(frozen=True)
class Reply:
    """`errors` are there where the reply is only a part of what was asked for."""

    body: Mapping[str, Any]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


class SlurmRest:
    """One slurmrestd. Safe to use from several threads; connections are kept alive."""

    def __init__(
        self,
        url: str,
        tokens: Tokens,
        *,
        socket: str | None = None,
        cluster_name: str | None = None,
        api_version: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ca_file: str | None = None,
    ) -> None:
        # One more try where no connection came about: nothing has been asked then.
        transport = httpx.HTTPTransport(retries=1, uds=socket, verify=ca_file or True)
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            transport=transport,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            headers={"Accept": "application/json"},
            # A redirect would carry the token to who knows where.
            follow_redirects=False,
            trust_env=False,
        )
        self._tokens = tokens
        self._cluster_name = cluster_name
        self._fixed = api_version
        self._found: tuple[str, float] | None = None
        self._lock = threading.Lock()

    # -- asking ---------------------------------------------------------------------------------------------------

    def get(self, user: str, path: str, params: Mapping[str, str] | None = None, *, partial: bool = False) -> Reply:
        """GET `/slurm/<version>/<path>`, or `slurmdb:<path>`. Asked again once with a new token if that was refused.

        `partial`: a reply with errors beside its content is returned, not raised.
        """
        return self._ask("GET", user, path, params=params, partial=partial)

    def post(self, user: str, path: str, body: Mapping[str, Any]) -> Reply:
        """POST once; never repeated after bytes went out. Raises ReplyLost when the outcome is not known."""
        return self._ask("POST", user, path, body=body)

    def delete(self, user: str, path: str, params: Mapping[str, str] | None = None) -> Reply:
        return self._ask("DELETE", user, path, params=params)

    def version(self, user: str) -> int:
        """The number of the API version spoken: 42 for v0.0.42."""
        return int(self._version(user).rpartition(".")[2])

    # -- one request ----------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        user: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        partial: bool = False,
    ) -> Reply:
        address = self._address(user, path)
        try:
            return self._once(method, user, address, params, body, partial, fresh=False)
        except _TokenRefused:
            # A refused token did nothing, so even a POST may be tried again. The key or the clock may have changed.
            try:
                return self._once(method, user, address, params, body, partial, fresh=True)
            except _TokenRefused as error:
                raise NothingAsked(str(error)) from None

    def _address(self, user: str, path: str) -> str:
        service, _, rest = path.rpartition(":")
        return f"/{service or 'slurm'}/{self._version(user)}/{rest}"

    def _once(
        self,
        method: str,
        user: str,
        address: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        partial: bool,
        *,
        fresh: bool,
    ) -> Reply:
        started = time.monotonic()
        token = self._tokens.token(user, fresh=fresh)
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token} if token else {"X-SLURM-USER-NAME": user}
        try:
            answer = self._http.request(method, address, params=params, json=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NothingAsked(f"slurmrestd cannot be reached: {_words(error)}") from None
        except httpx.HTTPError as error:
            raise ReplyLost(f"slurmrestd did not answer: {_words(error)}") from None
        return self._judge(answer, user, token, partial, time.monotonic() - started)

    def _judge(self, answer: httpx.Response, user: str, token: str, partial: bool, took_s: float) -> Reply:
        if answer.status_code == 304:
            return Reply({}, (), ())
        body = self._body(answer)
        said = translate.errors(body)
        code = next((translate.error_code(one) for one in body.get("errors") or () if isinstance(one, Mapping)), None)
        text = "; ".join(said) or f"HTTP {answer.status_code}"
        if answer.status_code in {401, 403, 511} or code in _AUTH_CODES:
            raise _TokenRefused(f"slurmrestd refused the token for {user}: {text}{self._clock(answer, token)}")
        if code in _DOWN_CODES:
            raise SchedulerUnavailable(f"Slurm's own daemon does not answer slurmrestd: {text}")
        if answer.status_code == 404 or code in {2017, 2018, 9003}:
            raise NotThere(text)
        if answer.status_code >= 500 and (code in {None, -1}):
            self._tell_bad_token_from_dead_daemon(user, token, took_s, text, answer)
        if said and not (partial and answer.status_code == 200):
            if answer.status_code == 200 and code is None:
                raise ReplyLost(f"slurmrestd answered with an error: {text}")
            raise Refused(text, code, body)
        if answer.status_code >= 400:
            raise Refused(text, code, body)
        self._check_cluster(body)
        warnings = tuple(_warning(one) for one in body.get("warnings") or ())
        return Reply(body, tuple(said), warnings)

    def _body(self, answer: httpx.Response) -> Mapping[str, Any]:
        raw = answer.content
        kind = answer.headers.get("content-type", "")
        if not raw.strip():
            if answer.status_code >= 400:
                return {"errors": [{"error": f"HTTP {answer.status_code} with an empty body"}]}
            raise ReplyLost("slurmrestd answered with an empty body")
        if "json" not in kind and raw[:1] not in b"{[":
            shown = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", raw[:2000].decode(errors="replace"))).strip()[:200]
            if answer.status_code == 401 or any(word in shown.lower() for word in _AUTH_TEXTS):
                return {"errors": [{"error": shown, "error_number": 1007}]}
            if "html" in kind or b"<html" in raw[:500].lower():
                raise ReplyLost(f"a web page came instead of Slurm's answer (HTTP {answer.status_code}): {shown}")
            return {"errors": [{"error": shown or f"HTTP {answer.status_code}"}]}
        try:
            body = json.loads(raw)
        except ValueError:
            raise ReplyLost(f"slurmrestd's answer of {len(raw):,} bytes is cut off or is not JSON") from None
        if not isinstance(body, Mapping):
            raise ReplyLost("slurmrestd's answer is JSON of another shape than Slurm's")
        return body

    def _tell_bad_token_from_dead_daemon(
        self, user: str, token: str, took_s: float, text: str, answer: httpx.Response
    ) -> None:
        """22.05 says "Unspecified error" to both. Only a dead daemon keeps it waiting, for nine seconds."""
        if "unspecified error" not in text.lower() and not text.startswith("HTTP 5"):
            return
        if took_s > 5:
            raise SchedulerUnavailable(f"slurmctld does not answer slurmrestd (it waited {took_s:.0f} s): {text}")
        raise _TokenRefused(f"slurmrestd refused the token for {user}, or failed: {text}{self._clock(answer, token)}")

    def _clock(self, answer: httpx.Response, token: str) -> str:
        """A note when the two machines' clocks differ: the commonest cause of refused tokens."""
        with contextlib.suppress(Exception):
            issued = float(jwt.decode(token, options={"verify_signature": False})["iat"])
            from email.utils import parsedate_to_datetime

            skew_s = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
            if abs(skew_s) > 60 and issued:
                return f" (its clock is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} ours)"
        return ""

    def _check_cluster(self, body: Mapping[str, Any]) -> None:
        if self._cluster_name is None:
            return
        meta = body.get("meta") or {}
        told = (meta.get("slurm") or meta.get("Slurm") or {}).get("cluster")
        if not told:
            jobs = body.get("jobs")
            told = jobs[0].get("cluster") if isinstance(jobs, list) and jobs and isinstance(jobs[0], Mapping) else None
        if told and told != self._cluster_name:
            raise SchedulerUnavailable(f"this slurmrestd serves cluster {told!r}, not {self._cluster_name!r}")

    # -- versions -------------------------------------------------------------------------------------------------

    def _version(self, user: str) -> str:
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            if self._found is not None and time.monotonic() - self._found[1] < VERSION_KEPT_S:
                return self._found[0]
            self._found = (self._discover(user), time.monotonic())
            return self._found[0]

    def _discover(self, user: str) -> str:
        """The newest that answers a ping; an unknown one is answered at once, with 404."""
        for number in range(NEWEST, OLDEST - 1, -1):
            version = f"v0.0.{number}"
            try:
                self._once("GET", user, f"/slurm/{version}/ping", None, None, True, fresh=False)
            except _TokenRefused:
                try:  # the version is there; whether the token is good shows here
                    self._once("GET", user, f"/slurm/{version}/ping", None, None, True, fresh=True)
                except _TokenRefused as error:
                    raise NothingAsked(str(error)) from None
            except NotThere:
                continue
            except Refused as error:
                if "not found" in str(error).lower() or "unable to find" in str(error).lower():
                    continue
                raise SchedulerUnavailable(str(error)) from None
            return version
        raise SchedulerUnavailable(
            f"slurmrestd speaks none of the API versions known here (v0.0.{OLDEST} to v0.0.{NEWEST})"
        )


class _TokenRefused(SchedulerError):
    pass


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _warning(one: Any) -> str:
    if not isinstance(one, Mapping):
        return str(one)
    source = f" [{one['source']}]" if one.get("source") else ""
    return f"{one.get('description') or one.get('warning') or one}{source}"

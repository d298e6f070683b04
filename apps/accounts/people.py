"""Verbs on people: add, edit, passwords, tokens, inbox, and as whom their jobs run."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from apps.accounts.models import ApiToken, Notice, UnixIdentity, User
from apps.core.audit import record
from apps.core.clean import clean
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.permissions import require, site_roles
from apps.inventory.models import Cluster

MAX_TOKEN_DAYS = 365
MAX_TOKENS = 50


@transaction.atomic
def add_person(
    *, username: str, first_name: str = "", last_name: str = "", email: str = "", is_operator: bool = False, by: User
) -> tuple[User, str]:
    """A new person and the one-time password to tell them. Raises InvalidInput for a name that is taken."""
    require("person.add", site_roles(by))
    person = User(
        username=username.strip(),
        first_name=first_name,
        last_name=last_name,
        email=email,
        is_operator=is_operator,
        must_change_password=True,
    )
    password = _one_time_password()
    person.set_password(password)
    clean(person, exclude=["password"])
    if User.objects.filter(username__iexact=person.username).exists():
        raise InvalidInput({"username": f"There is a person named {person.username!r} already."})
    person.save()
    record("person.add", by=by, target=person, after={"username": person.username, "is_operator": is_operator})
    return person, password


@transaction.atomic
def edit_person(
    person: User,
    *,
    first_name: str,
    last_name: str,
    email: str,
    is_operator: bool,
    is_active: bool,
    by: User,
) -> User:
    """Change a person. The last active operator stays one, else nobody could mend the site."""
    require("person.edit", site_roles(by))
    # One lock for all operators: two who demote each other at the same moment must not both succeed.
    operators = set(
        User.objects.select_for_update().filter(is_operator=True, is_active=True).values_list("pk", flat=True)
    )
    person = User.objects.select_for_update().get(pk=person.pk)
    if person.pk in operators and len(operators) == 1 and not (is_operator and is_active):
        raise Conflict(f"{person.username} is the only active operator; make somebody else one first.")
    before = _facts(person)
    person.first_name, person.last_name, person.email = first_name, last_name, email
    person.is_operator, person.is_active = is_operator, is_active
    clean(person, exclude=["password"])
    person.save()
    if not is_active:
        ApiToken.objects.filter(user=person).delete()
    record("person.edit", by=by, target=person, before=before, after=_facts(person))
    return person


@transaction.atomic
def reset_password(person: User, *, by: User) -> str:
    """A new one-time password, which the person must change when they sign in."""
    require("person.reset_password", site_roles(by))
    password = _one_time_password()
    person.set_password(password)
    person.must_change_password = True
    person.save(update_fields=["password", "must_change_password"])
    record("person.reset_password", by=by, target=person)
    return password


@transaction.atomic
def set_own_password(person: User, *, old: str, new: str) -> None:
    """Raises InvalidInput on `old` or `new`. Other sessions of the person end with the old password."""
    if not person.check_password(old):
        raise InvalidInput({"old": "This is not your password."})
    if old == new:
        raise InvalidInput({"new": "The new password is the old one."})
    try:
        validate_password(new, person)
    except ValidationError as error:
        raise InvalidInput({"new": error.messages}) from None
    person.set_password(new)
    person.must_change_password = False
    person.save(update_fields=["password", "must_change_password"])
    record("person.set_password", by=person, target=person)


@transaction.atomic
def edit_own_account(person: User, *, first_name: str, last_name: str, email: str, time_zone: str) -> None:
    before = _facts(person)
    person.first_name, person.last_name, person.email = first_name, last_name, email
    person.time_zone = time_zone
    clean(person, exclude=["password"])
    person.save()
    record("person.edit_own", by=person, target=person, before=before, after=_facts(person))


@transaction.atomic
def create_token(person: User, *, name: str, days: int) -> tuple[ApiToken, str]:
    """A token and its text, which is shown once and kept nowhere: the row has a digest of it."""
    name = name.strip()
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput({"name": "Give the token a name of up to 100 characters, to know it by later."})
    if not 1 <= days <= MAX_TOKEN_DAYS:
        raise InvalidInput({"days": f"A token lives from 1 to {MAX_TOKEN_DAYS} days."})
    if ApiToken.objects.filter(user=person).count() >= MAX_TOKENS:
        raise Conflict(f"You have {MAX_TOKENS} tokens; revoke one you do not use any more.")
    token, text = ApiToken.objects.create(user=person, expiry=timedelta(days=days), prefix="swy_")
    token.name = name
    token.save(update_fields=["name"])
    record("token.create", by=person, target=person, after={"name": name, "days": days})
    return token, text


@transaction.atomic
def revoke_token(person: User, token_key: str) -> None:
    """`token_key`: the first characters of the token, which its row keeps."""
    token = ApiToken.objects.filter(user=person, token_key=token_key).first()
    if token is None:
        raise NotFound("There is no such token.")
    record("token.revoke", by=person, target=person, before={"name": token.name})
    token.delete()


def notify(user: User, *, key: str, level: str, text: str, link: str = "") -> None:
    """Put a line in the person's inbox, once for each `key`. `level` is info, warn or bad."""
    Notice.objects.bulk_create(
        [Notice(user=user, key=key[:120], level=level, text=text[:500], link=link)], ignore_conflicts=True
    )


def mark_notices_read(person: User, ids: Sequence[int] | None = None) -> int:
    """These of the person's notices, or all; returns how many were unread."""
    unread = Notice.objects.filter(user=person, read_at__isnull=True)
    if ids is not None:
        unread = unread.filter(pk__in=ids)
    return unread.update(read_at=timezone.now())


def unix_identity_for(user: User, cluster: Cluster) -> UnixIdentity | None:
    """As whom the person's jobs run there. On this machine's own cluster one is made: a uid that is nobody else's."""
    found = UnixIdentity.objects.filter(user=user, cluster=cluster).first()
    if found is not None or cluster.scheduler != "local":
        return found
    try:
        with transaction.atomic():
            # The cluster's row is the queue for the next free uid.
            Cluster.objects.select_for_update().get(pk=cluster.pk)
            highest = UnixIdentity.objects.filter(cluster=cluster).aggregate(highest=Max("uid"))["highest"]
            uid = max((highest or 0) + 1, settings.SWITCHYARD.local_job_uid_base)
            return UnixIdentity.objects.create(user=user, cluster=cluster, unix_user=f"swy-{uid}", uid=uid)
    except IntegrityError:  # the same person submitted twice at once
        return UnixIdentity.objects.get(user=user, cluster=cluster)


_UNIX_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}\Z", re.IGNORECASE)


@transaction.atomic
def set_unix_identity(user: User, cluster: Cluster, unix_user: str, *, by: User | None) -> None:
    """As whom the person's jobs run on a real scheduler; "" takes it away. `by` None: a command on the machine itself.

    The local cluster makes its own. Jobs never run as root, whoever asks.
    """
    if by is not None:
        require("person.edit", site_roles(by))
    if cluster.scheduler == "local":
        raise InvalidInput({"cluster": f"{cluster} makes the users its jobs run as by itself."})
    unix_user = unix_user.strip()
    if unix_user and not _UNIX_NAME.match(unix_user):
        raise InvalidInput({"unix_user": "A unix user's name has up to 32 letters, digits, dots, dashes, underscores."})
    if unix_user == "root":
        raise InvalidInput({"unix_user": "Jobs do not run as root; name a user of the person's own."})
    known = UnixIdentity.objects.select_for_update().filter(user=user, cluster=cluster).first()
    before = {"cluster": cluster.name, "unix_user": known.unix_user if known else ""}
    if unix_user:
        UnixIdentity.objects.update_or_create(user=user, cluster=cluster, defaults={"unix_user": unix_user})
    elif known is not None:
        known.delete()
    if before["unix_user"] != unix_user:
        record("person.identity", by=by, target=user, before=before, after={**before, "unix_user": unix_user})


def _one_time_password() -> str:
    return secrets.token_urlsafe(12)


def _facts(person: User) -> dict[str, object]:
    names = ("first_name", "last_name", "email", "is_operator", "is_active", "time_zone")
    return {name: getattr(person, name) for name in names}

"""The verbs of accounts."""

from apps.accounts.hours import (
    HoursLeft,
    hours_left,
    reserve_hours,
    reserve_hours_bulk,
    reserve_what_is_left,
    settle_hours,
)
from apps.accounts.people import (
    add_person,
    create_token,
    edit_own_account,
    edit_person,
    mark_notices_read,
    notify,
    reset_password,
    revoke_token,
    set_own_password,
    set_unix_identity,
    unix_identity_for,
)
from apps.accounts.projects import create_project, edit_project, grant_allocation, remove_member, set_member

__all__ = [
    "HoursLeft",
    "add_person",
    "create_project",
    "create_token",
    "edit_own_account",
    "edit_person",
    "edit_project",
    "grant_allocation",
    "hours_left",
    "mark_notices_read",
    "notify",
    "remove_member",
    "reserve_hours",
    "reserve_hours_bulk",
    "reserve_what_is_left",
    "reset_password",
    "revoke_token",
    "set_member",
    "set_own_password",
    "set_unix_identity",
    "settle_hours",
    "unix_identity_for",
]

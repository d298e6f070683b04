"""What bodies and answers of people, projects, hours and tokens look like. Hours are decimal texts."""

from __future__ import annotations

from rest_framework import serializers

from apps.accounts.models import HourUnit, Role
from apps.api.base import StrictSerializer


def _text(max_length: int, **more: object) -> serializers.CharField:
    return serializers.CharField(max_length=max_length, **more)  # type: ignore[arg-type]


def _hours(**more: object) -> serializers.DecimalField:
    return serializers.DecimalField(max_digits=18, decimal_places=6, **more)  # type: ignore[arg-type]


# -- bodies


class ProjectIn(StrictSerializer):
    name = serializers.SlugField(max_length=60)
    title = _text(200, required=False, allow_blank=True, default="")
    description = _text(4000, required=False, allow_blank=True, default="")
    is_metered = serializers.BooleanField(required=False, default=True)
    lead = _text(150, required=False, allow_null=True, help_text="The username of who leads it.")


class ProjectChange(StrictSerializer):
    title = _text(200, required=False, allow_blank=True)
    description = _text(4000, required=False, allow_blank=True)
    is_active = serializers.BooleanField(required=False)


class MemberIn(StrictSerializer):
    role = serializers.ChoiceField(choices=Role.choices)


class GrantIn(StrictSerializer):
    unit = serializers.ChoiceField(choices=HourUnit.choices)
    hours = _hours()
    ends_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    note = _text(300, required=False, allow_blank=True, default="")


class PersonIn(StrictSerializer):
    username = _text(150)
    first_name = _text(150, required=False, allow_blank=True, default="")
    last_name = _text(150, required=False, allow_blank=True, default="")
    email = serializers.EmailField(required=False, allow_blank=True, default="")
    is_operator = serializers.BooleanField(required=False, default=False)


class PersonChange(StrictSerializer):
    first_name = _text(150, required=False, allow_blank=True)
    last_name = _text(150, required=False, allow_blank=True)
    email = serializers.EmailField(required=False, allow_blank=True)
    is_operator = serializers.BooleanField(required=False)
    is_active = serializers.BooleanField(required=False)


class TokenIn(StrictSerializer):
    name = _text(100)
    days = serializers.IntegerField(min_value=1, max_value=365, required=False, default=90)


class NoticesRead(StrictSerializer):
    ids = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**63 - 1),
        required=False,
        allow_null=True,
        default=None,
        max_length=1000,
        help_text="Null or missing: all.",
    )


# -- answers


class ProjectOut(serializers.Serializer):
    name = serializers.CharField()
    public_id = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    is_metered = serializers.BooleanField()
    is_active = serializers.BooleanField()
    created_at = serializers.DateTimeField()


class ProjectDetailOut(ProjectOut):
    gpu_hours_left = _hours(allow_null=True, help_text="Null: not metered.")
    cpu_hours_left = _hours(allow_null=True, help_text="Null: not metered.")


class MemberOut(serializers.Serializer):
    person = serializers.CharField()
    role = serializers.ChoiceField(choices=Role.choices)
    created_at = serializers.DateTimeField()


class AllocationOut(serializers.Serializer):
    id = serializers.IntegerField()
    unit = serializers.ChoiceField(choices=HourUnit.choices)
    granted = _hours()
    reserved = _hours()
    spent = _hours()
    starts_at = serializers.DateTimeField()
    ends_at = serializers.DateTimeField(allow_null=True)
    note = serializers.CharField()


class PersonOut(serializers.Serializer):
    public_id = serializers.CharField()
    username = serializers.CharField()
    first_name = serializers.CharField()
    last_name = serializers.CharField()
    email = serializers.CharField()
    is_operator = serializers.BooleanField()
    is_active = serializers.BooleanField()
    last_login = serializers.DateTimeField(allow_null=True)


class NewPersonOut(PersonOut):
    one_time_password = serializers.CharField(help_text="Shown this once; to be changed at the first sign-in.")


class OneTimePassword(serializers.Serializer):
    one_time_password = serializers.CharField()


class TokenOut(serializers.Serializer):
    key = serializers.CharField(help_text="The first characters of the token, by which it is named here.")
    name = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class NewTokenOut(TokenOut):
    token = serializers.CharField(help_text="Shown this once.")


class NoticeOut(serializers.Serializer):
    id = serializers.IntegerField()
    level = serializers.CharField()
    text = serializers.CharField()
    link = serializers.CharField()
    created_at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)


class ReadOut(serializers.Serializer):
    read = serializers.IntegerField(help_text="How many were unread.")


class AuditOut(serializers.Serializer):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    person = serializers.CharField()
    verb = serializers.CharField()
    target_type = serializers.CharField()
    target_id = serializers.CharField()
    target_name = serializers.CharField()
    before = serializers.DictField()
    after = serializers.DictField()
    via = serializers.CharField()
    ip = serializers.CharField(allow_null=True)

"""A row's own checks, as errors a person may see."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.db import models

from apps.core.errors import InvalidInput


def clean(row: models.Model, *, exclude: Iterable[str] = ()) -> None:
    """Check every field that has a value. Raises InvalidInput. Uniqueness is left to the caller and the database."""
    empty = {f.name for f in row._meta.concrete_fields if f.null and getattr(row, f.attname) is None}
    try:
        row.full_clean(exclude={*empty, *exclude}, validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise InvalidInput(error.message_dict) from None

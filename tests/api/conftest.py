"""Asking the API as somebody: by token, as scripts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client


class ApiClient(Client):
    """Bodies are JSON unless said otherwise; `enforce_csrf_checks`, since tokens must not need a cookie."""

    def __init__(self, **headers: str) -> None:
        super().__init__(enforce_csrf_checks=True, headers=headers)

    def post(self, path: str, data: Any = None, content_type: str = "application/json", **more: Any) -> Any:
        return super().post(path, {} if data is None else data, content_type=content_type, **more)


@pytest.fixture
def as_person(db: None) -> Callable[[Any], ApiClient]:
    def client(person: Any) -> ApiClient:
        from apps.accounts.actions import create_token

        _, text = create_token(person, name="a script", days=7)
        return ApiClient(authorization=f"Bearer {text}")

    return client


@pytest.fixture
def mina(cast, as_person) -> ApiClient:
    return as_person(cast.mina)


@pytest.fixture
def body() -> Callable[..., dict[str, Any]]:
    def make(**values: Any) -> dict[str, Any]:
        return {
            "project": "gpt",
            "cluster": "local",
            "name": "a job",
            "kind": "test",
            "script": "echo hello",
            "time_limit_s": 3600,
            **values,
        }

    return make


def fields_of(response: Any) -> list[str]:
    """The fields a problem names."""
    assert response["Content-Type"] == "application/problem+json", response.content
    return [error["field"] for error in response.json()["errors"]]

"""The schema in the repository is the one that is served, and the page that shows it needs nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from django.contrib.staticfiles import finders
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

pytestmark = pytest.mark.django_db
CHECKED_IN = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"


def test_the_checked_in_schema_is_the_generated_one():
    generated = SchemaGenerator().get_schema(request=None, public=True)
    validate_schema(generated)
    assert yaml.safe_load(CHECKED_IN.read_text()) == yaml.safe_load(yaml.safe_dump(_plain(generated))), (
        "run `make openapi` and look at what changed"
    )


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | None) else str(value)


def test_every_operation_says_how_to_get_in_and_what_comes_back():
    schema = yaml.safe_load(CHECKED_IN.read_text())
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["responses"], f"{method} {path}"
            if path.startswith("/api/v1/job-output/"):  # a job's own script comes in here, and nobody else
                assert operation["security"] == [{"job": []}]
                continue
            assert {"token": []} in operation["security"], f"{method} {path}"
            if method != "get":
                names = {parameter["name"] for parameter in operation.get("parameters", [])}
                assert "dry_run" in names, f"{method} {path} has no dry run"


def test_the_schema_is_served_to_who_is_signed_in(mina, client):
    assert client.get("/api/v1/schema/").status_code == 401
    response = mina.get("/api/v1/schema/")
    assert response.status_code == 200
    assert yaml.safe_load(response.content)["info"]["title"] == "Switchyard API"


def test_the_page_has_no_script_inside_and_all_it_names_is_here(mina, client):
    assert client.get("/api/docs/").status_code == 401
    response = mina.get("/api/docs/")
    html = response.content.decode()
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 3
    assert all("src=" in attributes and not inside.strip() for attributes, inside in scripts)
    links = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(links) == 5
    for link in links:
        assert link.startswith(("/static/", "/api/docs/?script=")), link
        if link.startswith("/static/"):
            assert finders.find(link.removeprefix("/static/")), link
    script = mina.get("/api/docs/?script=")
    assert script["Content-Type"].startswith("application/javascript")
    assert "/api/v1/schema/" in script.content.decode()
    assert "unsafe-eval" not in response["Content-Security-Policy"]

"""No page falls over, whatever is sent to it: every URL, parameter and field, with what nobody would type."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.jobs.helpers import follow, submit
from tests.walks.test_rights import pages, things, url_of  # noqa: F401

pytestmark = pytest.mark.django_db

RUBBISH = [
    "",
    "\0",
    "-1",
    "9" * 40,
    "1e400",
    "NaN",
    "[]",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "../../../etc/passwd",
    "%00",
    "\u202e\ud7ff\U0001f680",
    "x" * 20_000,
    "gpu[1-99999999999]",
    "a\r\nX-Injected: 1",
]
PARAMS = """
    q state kind project person cluster tag after before stream offset attempt path download name format from example
    parent partition verb target next tab type
""".split()
FIELDS = """
    id reason key copied_from project cluster kind name script nodes accelerators_per_node cpus_per_node memory
    time_limit partition environment working_dir parent_checkpoint max_retries tags hold username first_name last_name
    email is_operator is_active old new again days title description lead is_metered person role unit hours ends_on note
    is_enabled position_u height_u face serial comment manifest text data file_name apply file hall password row place
""".split()
# Signing out would end the walk.
LEFT_ALONE = {"web:sign-out"}


@pytest.fixture
def as_rex(client, cast):
    client.force_login(cast.rex)
    return client


def check(answer, url: str, what: str) -> None:
    assert answer.status_code < 500, f"{url} with {what}: {answer.status_code}"
    assert "X-Injected" not in answer.headers


@pytest.mark.parametrize("number", range(len(RUBBISH)))
def test_every_page_with_rubbish_in_its_address(as_rex, cast, things, number):  # noqa: F811
    job = follow(submit(cast))
    value = RUBBISH[number]
    for name, _, route in pages():
        if name in LEFT_ALONE:
            continue
        url = url_of(route, things, cast).replace(things["job"].public_id, job.public_id)
        check(as_rex.get(url, dict.fromkeys(PARAMS, value)), url, repr(value[:30]))
        for param in (
            PARAMS if name in {"web:jobs", "web:job-log", "web:job-files", "web:job-chart", "web:nodes"} else ()
        ):
            check(as_rex.get(url, {param: value}), url, f"{param}={value[:30]!r}")


@pytest.mark.parametrize("number", range(len(RUBBISH)))
def test_every_form_with_rubbish_in_its_fields(as_rex, cast, things, number):  # noqa: F811
    value = RUBBISH[number]
    for name, _, route in pages():
        if name in LEFT_ALONE:
            continue
        url = url_of(route, things, cast)
        check(as_rex.post(url, dict.fromkeys(FIELDS, value)), url, repr(value[:30]))
        as_rex.force_login(cast.rex)  # a form may have ended the session
        cast.rex.refresh_from_db()


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"a: &a [*a]", b"- " * 5000, b"{" * 5000, b"\x00" * 100, b"name;rack\n"]
)
def test_files_with_rubbish(as_rex, cast, things, data):  # noqa: F811
    for name, _, route in pages():
        if name in {"web:manifest", "web:nodes-import", "web:import"} or "manifest" in route or "import" in route:
            url = url_of(route, things, cast)
            for field in ("manifest", "file"):
                upload = SimpleUploadedFile("x.yaml", data)
                check(as_rex.post(url, {field: upload, "hall": things["hall"].pk}), url, repr(data[:20]))


@pytest.mark.parametrize(
    "path", ["/jobs/%00/", "/jobs/" + "x" * 5000 + "/", "/nodes/99999999999999999999/", "/projects/%2e%2e/", "/%ff/"]
)
def test_addresses_of_nothing(as_rex, cast, path):
    assert as_rex.get(path).status_code == 404


def test_a_body_that_is_no_form(as_rex, cast):
    for content_type in ("application/json", "multipart/form-data; boundary=x", "text/plain", "multipart/form-data"):
        answer = as_rex.post("/jobs/new/", b"\x00{", content_type=content_type)
        assert answer.status_code in {400, 422}

"""Every page: no serious violation, no sideways scrolling, in light and dark, wide and narrow; keys and theme."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from apps.jobs.models import Job
from tests.e2e.conftest import serious_violations
from tests.harness import BASE_DIR
from tests.jobs.helpers import follow, submit

EMPTY = ["/", "/jobs/", "/jobs/new/", "/projects/", "/clusters/", "/site/", "/nodes/", "/inbox/", "/account/tokens/"]


@pytest.fixture
def furnished(cast, transactional_db):
    """A site, a finished job with metrics and a failed one, and a waiting one with a long name."""
    from django.core.management import call_command

    call_command("load_catalogue", verbosity=0)
    call_command("load_manifest", str(BASE_DIR / "examples" / "site.yaml"), verbosity=0)
    script = (
        "for n in 1 2 3; do\n"
        """echo "{\\"step\\": $n, \\"name\\": \\"loss\\", \\"value\\": $n}" >> $SWITCHYARD_METRICS\ndone\n"""
        """echo '{"event": "checkpoint", "path": "c.npz", "step": 3}' >> $SWITCHYARD_METRICS\n"""
        """printf '\\033[31mred\\033[0m\\nError: something\\n'"""
    )
    follow(submit(cast, script, name="done"))
    follow(submit(cast, "echo no >&2; exit 7", name="broken"))
    submit(cast, name="n" * 200, hold=True, tags=("a", "b"))
    return cast


def all_pages(cast) -> list[str]:
    from apps.inventory.models import Hall, Node

    jobs = {job.name: job.public_id for job in Job.objects.all()}
    return [
        "/",
        "/jobs/",
        "/jobs/?q=nothing-has-this-name",
        f"/jobs/{jobs['done']}/",
        f"/jobs/{jobs['done']}/files/",
        f"/jobs/{jobs['broken']}/?stream=stderr",
        f"/jobs/{jobs['n' * 200]}/",
        f"/jobs/new/?from={jobs['done']}",
        "/projects/",
        "/projects/new/",
        "/projects/gpt/",
        "/clusters/",
        "/clusters/local/",
        "/site/",
        f"/site/halls/{Hall.objects.first().pk}/",
        "/site/catalogue/",
        "/site/manifest/",
        "/nodes/",
        f"/nodes/{Node.objects.first().pk}/",
        f"/nodes/{Node.objects.first().pk}/drain/",
        f"/nodes/resume/?id={Node.objects.first().pk}&id={Node.objects.last().pk}",
        "/people/",
        "/people/new/",
        f"/people/{cast.mina.public_id}/",
        "/audit/",
        "/account/",
        "/account/password/",
        "/account/tokens/",
        "/inbox/",
        "/search/?q=do",
        "/no-such-page/",
    ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_every_page_can_be_read_by_everybody(open_page, furnished, live_server, scheme, width):
    page = open_page(furnished.rex, scheme=scheme, width=width)
    found: list[str] = []
    for path in all_pages(furnished):
        page.goto(live_server.url + path)
        page.wait_for_load_state("networkidle") if "/jobs/job-" in path else page.wait_for_load_state()
        found += serious_violations(page)
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append(f"{path} scrolls sideways at {width} px")
    assert "\n".join(found) == ""


def test_pages_of_a_new_install_say_what_to_do_next(open_page, cast, live_server):
    page = open_page(cast.sam)
    found: list[str] = []
    for path in EMPTY:
        page.goto(live_server.url + path)
        found += serious_violations(page)
        if path not in {"/clusters/"} and page.locator(".empty").count() == 0:
            found.append(f"{path} has no empty state")
    assert "\n".join(found) == ""


def test_signing_in_out_and_wrongly(open_page, cast, live_server):
    page = open_page()
    page.goto(f"{live_server.url}/jobs/?state=running")
    assert serious_violations(page) == []
    page.fill("#id_username", "mina")
    page.fill("#id_password", "wrong")
    page.click("button:has-text('Sign in')")
    expect(page.get_by_role("alert")).to_contain_text("do not belong together")
    page.fill("#id_password", cast.PASSWORD)
    page.click("button:has-text('Sign in')")
    page.wait_for_url(f"{live_server.url}/jobs/?state=running")  # where they wanted to go
    page.goto(f"{live_server.url}/account/")
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{live_server.url}/jobs/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_keyboard_reaches_everything(open_page, cast, live_server):
    page = open_page(cast.rex)
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.locator("#main").focus()
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url(f"{live_server.url}/jobs/")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()


def test_the_theme_is_remembered(open_page, cast, live_server):
    page = open_page(cast.mina, scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.goto(f"{live_server.url}/jobs/")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_the_api_page_works_without_the_outside(open_page, cast, live_server):
    page = open_page(cast.mina)
    page.goto(f"{live_server.url}/api/docs/")
    expect(page.locator(".swagger-ui .info .title")).to_contain_text("Switchyard API", timeout=20_000)
    expect(page.locator(".opblock").first).to_be_visible(timeout=20_000)

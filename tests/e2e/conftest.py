"""A real browser on the real pages. Console errors and requests that leave the host fail the test that made them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser")) if path), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if CHROMIUM is None and os.geteuid() != 0:
                reason = "Chromium is not installed: sudo apt-get install -y chromium"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses root; the pages it sees here are ours.
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, live_server: Any) -> Iterator[Callable[..., Page]]:
    """`open_page(person)`: a window in which the person has signed in; None: nobody has."""
    troubles: list[str] = []
    contexts = []
    host = urlparse(live_server.url).netloc

    def note_console(message: ConsoleMessage) -> None:
        # A refused form is an answer, not a fault; the browser logs its status still. And htmx logs these when a page
        # is left while a poll is under way; a poll that is answered with an error has another text.
        left = ("htmx:afterRequest", "htmx:sendError", "htmx:sendAbort")
        is_harmless = "status of 4" in message.text or message.text.startswith(left)
        if message.type in {"error", "warning"} and not is_harmless:
            troubles.append(f"console: {message.text}")

    def note_request(request: Request) -> None:
        url = urlparse(request.url)
        if url.scheme in {"http", "https", "ws", "wss"} and url.netloc != host:
            troubles.append(f"left the host: {request.url}")

    def open_one(person: Any = None, *, width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", note_console)
        page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
        page.on("request", note_request)
        if person is not None:
            from tests.cast import PASSWORD

            page.goto(f"{live_server.url}/sign-in/")
            page.fill("#id_username", person.username)
            page.fill("#id_password", PASSWORD)
            page.click("button:has-text('Sign in')")
            page.wait_for_url(f"{live_server.url}/")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert troubles == []


def serious_violations(page: Page) -> list[str]:
    """What axe finds that keeps somebody from using the page: rule, and the first place."""
    found = Axe().run(page).response["violations"]
    return [
        f"{page.url}: {one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]

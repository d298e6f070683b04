"""The API's page works under the strict content security policy and without a network."""

from __future__ import annotations

from playwright.sync_api import expect

from apps.jobs.models import Job
from tests.jobs.helpers import submit


def test_the_api_is_shown_and_can_be_tried_with_ones_session(cast, transactional_db, open_page, live_server):
    job = submit(cast)
    page = open_page(cast.mina)
    page.goto(f"{live_server.url}/api/docs/")
    expect(page.locator(".info .title")).to_contain_text("Switchyard API")
    operation = page.locator("#operations-jobs-job_hold")
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.locator("input[placeholder='public_id']").fill(job.public_id)
    operation.locator("tr", has_text="dry_run").locator("select").select_option("false")
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    assert Job.objects.get().is_held

"""The main job in a browser: sign in, submit the example, watch it, see it end, cancel another."""

from __future__ import annotations

import os
import re

from playwright.sync_api import expect

from apps.jobs.models import Job
from tests.e2e.conftest import serious_violations
from tests.harness import BASE_DIR
from tests.waiting import wait_until


def test_the_main_job(open_page, real_worker, cast, live_server):
    real_worker(beat=True)
    page = open_page(cast.mina)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    # Submit the training example from the form, shorter than it is by default.
    page.get_by_role("link", name="Submit a job").click()
    page.get_by_role("link", name="Train a small language model").click()
    script = page.locator("#id_script")
    script.fill(script.input_value().replace("15000", "2500"))
    expect(page.locator("#preview")).to_contain_text("It fits", timeout=15_000)
    expect(page.locator("#preview-script")).to_contain_text("--steps 2500")
    assert serious_violations(page) == []
    page.locator("#submit-button").click()
    page.wait_for_url(re.compile(r"/jobs/job-"))
    job_url = page.url

    # It runs: the sentence moves, the loss curve is drawn and gets longer, the log grows.
    expect(page.locator("#job-status")).to_contain_text("Running for", timeout=30_000)
    curve = page.locator(".chart .scatterlayer path.js-line").first
    expect(curve).to_be_attached(timeout=30_000)
    early = curve.get_attribute("d")
    expect(page.locator("#log")).to_contain_text("characters to learn from", timeout=15_000)
    shown = page.locator("#log").inner_text()
    wait_until(lambda: page.locator("#log").inner_text() != shown or page.wait_for_timeout(200), 20)
    wait_until(lambda: curve.get_attribute("d") != early or page.wait_for_timeout(200), 20)

    # It ends by itself, the page says so, and stops asking.
    expect(page.locator("#job-status")).to_contain_text("Completed after", timeout=90_000)
    expect(page.locator("#log")).to_contain_text("loss on text held back", timeout=15_000)
    job = Job.objects.get()
    loss = job.attempts.get().series.get(name="val_loss")
    assert loss.data["values"][0] > 4.3
    assert loss.last_value < 2.5
    assert page.locator("#job-status[hx-get]").count() == 0
    page.reload()
    expect(page.locator(".chart .scatterlayer path.js-line").first).to_be_attached(timeout=15_000)
    expect(page.get_by_role("region", name="Checkpoints")).to_contain_text("checkpoint.npz")
    assert serious_violations(page) == []
    if os.environ.get("SWITCHYARD_SCREENSHOT"):
        page.set_viewport_size({"width": 1280, "height": 860})
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)
        page.screenshot(path=BASE_DIR / "docs" / "screenshot.png")

    # Its files can be looked at and fetched.
    page.get_by_role("link", name="Files").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="checkpoint.npz").click()
    assert download.value.suggested_filename == "checkpoint.npz"

    # Fine-tune from its checkpoint: the form knows the parent.
    page.goto(job_url)
    page.get_by_role("link", name="Fine-tune from it").first.click()
    expect(page.locator("#id_parent_checkpoint")).to_have_value(str(job.checkpoints.order_by("-id").first().pk))

    # Another one, cancelled while it runs.
    page.goto(f"{live_server.url}/jobs/new/?kind=test")
    page.fill("#id_name", "sleeps")
    page.fill("#id_script", "sleep 600")
    page.locator("#submit-button").click()
    page.wait_for_url(re.compile(r"/jobs/job-"))
    expect(page.locator("#job-status")).to_contain_text("Running for", timeout=30_000)
    page.get_by_role("button", name="Cancel").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#job-status")).to_contain_text("Cancelled after", timeout=30_000)
    page.goto(f"{live_server.url}/jobs/")
    expect(page.locator("#job-rows")).to_contain_text("cancelled")
    expect(page.locator("#job-rows")).to_contain_text("completed")


def test_a_form_that_is_refused_keeps_what_was_typed(open_page, cast, live_server):
    page = open_page(cast.mina)
    page.goto(f"{live_server.url}/jobs/new/?kind=test")
    page.fill("#id_name", "kept")
    page.fill("#id_script", "echo kept")
    page.fill("#id_cpus_per_node", "99")
    page.fill("#id_time_limit", "soon")
    page.locator("#submit-button").click()
    expect(page.locator(".notice-bad").first).to_be_visible()
    expect(page.locator("#id_name")).to_have_value("kept")
    expect(page.locator("#id_script")).to_have_value("echo kept")
    expect(page.locator("#id_time_limit")).to_have_value("soon")
    expect(page.locator("#id_time_limit_error")).to_contain_text("not a duration")
    page.fill("#id_time_limit", "0:10:00")
    page.locator("#submit-button").click()
    expect(page.locator("#id_cpus_per_node_error")).to_contain_text("the limit of partition local is 2")
    assert Job.objects.count() == 0

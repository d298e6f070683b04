"""The submit page: a form on the left, what it means on the right, before the button."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.views.decorators.http import require_http_methods, require_POST

from apps.core.errors import DomainError, InvalidInput, NotAllowed
from apps.inventory.queries import partitions_of
from apps.jobs.actions import check_job, spec_of, submit_job
from apps.jobs.examples import EXAMPLES, example
from apps.jobs.models import Checkpoint, JobKind
from apps.jobs.rights import visible_job, visible_jobs
from apps.jobs.spec import KIND_DEFAULTS
from apps.web.forms import SubmitForm, duration_text, initial_from_spec, memory_text
from apps.web.render import allows, form_errors, page, toast


@require_http_methods(["GET", "POST"])
@allows("job.submit")
def submit(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        form = SubmitForm(initial=_initial(request), user=request.user)
        form.offer_checkpoints()
        return _show(request, form)
    form = _bound(request)
    if form.is_valid():
        data = form.cleaned_data
        with form_errors(form, SubmitForm.FIELD_NAMES):
            job = submit_job(
                data["project"],
                data["cluster"],
                form.to_spec(),
                by=request.user,
                idempotency_key=f"form-{data['key']}",
                copied_from=visible_job(request.user, data["copied_from"]) if data["copied_from"] else None,
                hold=data["hold"],
            )
            toast(request, f"{job.name} was submitted.")
            return redirect("web:job", job.public_id)
    return _show(request, form, status=422)


@require_POST
@allows("job.submit")
def preview(request: HttpRequest) -> HttpResponse:
    """What the form as it stands would do; asked for while it is being filled in."""
    form = _bound(request)
    check, problem = None, None
    if form.is_valid():
        data = form.cleaned_data
        try:
            check = check_job(data["project"], data["cluster"], form.to_spec(), by=request.user, hold=data["hold"])
        except InvalidInput as error:
            for name, texts in error.fields.items():
                target = SubmitForm.FIELD_NAMES.get(name, name)
                form.add_error(target if target in form.fields else None, texts)
        except DomainError as error:
            problem = error
    cluster = form.cleaned_data.get("cluster") if hasattr(form, "cleaned_data") else None
    context = {
        "form": form,
        "check": check,
        "problem": problem,
        "cluster": cluster,
        "partitions": partitions_of(cluster) if cluster else [],
    }
    return page(request, "jobs/_preview.html", context)


def _bound(request: HttpRequest) -> SubmitForm:
    form = SubmitForm(request.POST, user=request.user)
    form.offer_checkpoints()
    return form


def _show(request: HttpRequest, form: SubmitForm, status: int = 200) -> HttpResponse:
    if not form.fields["project"].queryset.exists():
        context = {"nav": "submit", "nothing": "project"}
    elif not form.fields["cluster"].queryset.exists():
        context = {"nav": "submit", "nothing": "cluster"}
    else:
        context = {"nav": "submit", "form": form, "examples": EXAMPLES, "kinds": JobKind.choices}
    return page(request, "jobs/submit.html", context, status)


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Blank, from an example, or from another job (`?from=`); the project and cluster last chosen come along."""
    if request.GET.get("from"):
        job = visible_job(request.user, request.GET["from"])
        if not job.script:
            raise NotAllowed("This job was not submitted here, so its script is not known and it cannot be copied.")
        known = {"project": job.project and job.project.name, "cluster": job.cluster.name, "copied_from": job.public_id}
        return initial_from_spec(spec_of(job)) | known
    if request.GET.get("example"):
        initial = initial_from_spec(example(request.GET["example"]).spec)
    else:
        initial = _blank(request.GET.get("kind", "training"))
    if request.GET.get("parent", "").isdecimal():
        parent = Checkpoint.objects.filter(pk=int(request.GET["parent"]), job__in=visible_jobs(request.user)).first()
        if parent is not None:
            initial |= {"parent_checkpoint": parent.pk}
    return initial


def _blank(kind: str) -> dict[str, Any]:
    kind = kind if kind in KIND_DEFAULTS else "training"
    defaults = KIND_DEFAULTS[kind]
    return {
        "key": uuid.uuid4().hex,
        "kind": kind,
        "nodes": 1,
        "accelerators_per_node": 0,
        "cpus_per_node": defaults["cpus_per_node"],
        "memory": memory_text(defaults["memory_bytes_per_node"]),
        "time_limit": duration_text(defaults["time_limit_s"]),
        "max_retries": defaults["max_retries"],
    }


urlpatterns = [
    path("jobs/new/", submit, name="submit"),
    path("jobs/new/preview/", preview, name="submit-preview"),
]

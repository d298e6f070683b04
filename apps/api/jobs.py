"""Jobs: list, submit, one job, and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db.models import Q, QuerySet
from django.urls import path
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.models import Project, User
from apps.accounts.permissions import visible_projects
from apps.api.base import DRY_RUN, IDEMPOTENCY_KEY, ApiViewSet, is_dry_run, refuse_unknown_params
from apps.api.job_parts import part_urls
from apps.api.job_shapes import (
    JOB_COLUMNS,
    CancelIn,
    CancelManyIn,
    CancelManyOut,
    CheckOut,
    JobDetailOut,
    JobFactsOut,
    JobIn,
    JobOut,
    JobsIn,
    JobsOut,
    NothingIn,
    RerunIn,
    check_facts,
    job_facts,
    job_row,
    spec_changes,
    spec_from,
)
from apps.core.errors import InvalidInput
from apps.inventory.models import Cluster
from apps.jobs.actions import (
    cancel_job,
    cancel_jobs,
    check_job,
    hold_job,
    release_job,
    spec_of,
    submit_job,
    submit_jobs,
)
from apps.jobs.listing import first_pks, visible_parts
from apps.jobs.models import Job, JobKind, SubmissionKey
from apps.jobs.queries import JobFilters, job_detail
from apps.jobs.rights import require_for_job, visible_job

SUBMITTED = {
    201: JobFactsOut,
    200: OpenApiResponse(CheckOut, description="A dry run; or, as for 201, the job an earlier same request made."),
}


TEXTS = ("state", "kind", "project", "person", "cluster", "tag", "q")


class JobFilterSet(filters.FilterSet):
    state = filters.CharFilter(help_text="States or groups (waiting, running, failed, ended), separated by commas.")
    kind = filters.ChoiceFilter(choices=JobKind.choices)
    project = filters.CharFilter(help_text="A project's name.")
    person = filters.CharFilter(help_text="The user name of who submitted it.")
    cluster = filters.CharFilter(help_text="A cluster's name.")
    tag = filters.CharFilter()
    q = filters.CharFilter(help_text="A part of the name, or a whole id.")
    since = filters.IsoDateTimeFilter(help_text="Submitted at this time or later.")
    until = filters.IsoDateTimeFilter(help_text="Submitted before this time.")

    class Meta:
        model = Job
        fields: list[str] = []

    def filter_queryset(self, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """As the pages narrow their list, and by time."""
        given = self.form.cleaned_data
        jobs = JobFilters.from_params({name: given[name] for name in TEXTS}).narrow(queryset)
        jobs = jobs.filter(created_at__gte=given["since"]) if given["since"] is not None else jobs
        return jobs.filter(created_at__lt=given["until"]) if given["until"] is not None else jobs


class Jobs(ApiViewSet):
    """Jobs you may see: those of your projects and your own; all of them for operators."""

    queryset = Job.objects.none()
    serializer_class = JobOut
    filterset_class = JobFilterSet
    columns = JOB_COLUMNS
    keys = ("-id",)
    verbs = {
        "list": "job.view",
        "create": "job.submit",
        "bulk": "job.submit",
        "retrieve": "job.view",
        "cancel": "job.cancel",
        "cancel_many": "job.cancel",
        "hold": "job.hold",
        "release": "job.release",
        "rerun": "job.rerun",
    }

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Jobs you may see, newest first: those of your projects and your own; all of them for operators."""
        filterset = JobFilterSet(request.query_params, Job.objects.all(), request=request)

        filterset.is_valid()  # what is not, `page` refuses before it asks for the window

        def window(beyond: Q, newest_first: bool, count: int) -> QuerySet[Any]:
            parts = [filterset.filter_queryset(part) for part in visible_parts(request.user)]
            return first_pks(parts, beyond, newest_first=newest_first, count=count)

        return self.page(Job.objects.all(), window=window)

    @extend_schema(
        operation_id="jobs_submit",
        request=JobIn,
        responses=SUBMITTED,
        parameters=[DRY_RUN, IDEMPOTENCY_KEY],
        filters=False,
    )
    def create(self, request: Request) -> Response:
        """Submit a job. It is stored when the answer comes; a worker hands it to the cluster."""
        body = self.body(JobIn)
        return self._submit_one(_project_named(request.user, body), _cluster_named(body), spec_from(body), body["hold"])

    @extend_schema(
        operation_id="jobs_submit_many",
        request=JobsIn,
        responses={201: JobsOut, 200: JobsOut},
        parameters=[DRY_RUN, IDEMPOTENCY_KEY],
    )
    def bulk(self, request: Request) -> Response:
        """Submit up to 1,000 jobs, all or none; errors name fields as `jobs.<place>.<field>`."""
        refuse_unknown_params(request, {"dry_run"})
        body, key = self.body(JobsIn), _idempotency_key(request)
        project, cluster = _project_named(request.user, body), _cluster_named(body)
        specs = [spec_from(spec) for spec in body["jobs"]]

        def submit() -> dict[str, Any]:
            jobs = submit_jobs(project, cluster, specs, by=request.user, idempotency_key=key, hold=body["hold"])
            return {"jobs": [job_row(job) for job in jobs]}

        return self._answer_submitted(submit, key)

    @extend_schema(responses=JobDetailOut)
    def retrieve(self, request: Request, public_id: str) -> Any:
        """One job. Has an ETag: ask with If-None-Match and get 304 while nothing has changed."""
        detail = job_detail(request.user, public_id)
        return self.fresh(
            {
                **job_facts(detail.job),
                "may": detail.may,
                "reserved_gpu_hours": detail.reserved_gpu_hours,
                "reserved_cpu_hours": detail.reserved_cpu_hours,
            }
        )

    @extend_schema(operation_id="job_cancel", request=CancelIn, responses=JobFactsOut, parameters=[DRY_RUN])
    def cancel(self, request: Request, public_id: str) -> Response:
        """End the job wherever it is. Where it runs, that takes a moment: `wanted` says so until it is done."""
        reason = self.body(CancelIn)["reason"]
        return self._change(public_id, lambda job: cancel_job(job, by=request.user, reason=reason))

    @extend_schema(operation_id="jobs_cancel_many", request=CancelManyIn, responses=CancelManyOut, parameters=[DRY_RUN])
    def cancel_many(self, request: Request) -> Response:
        """Cancel each of up to 1,000 jobs that can be; `skipped` says why others were not."""
        refuse_unknown_params(request, {"dry_run"})
        body = self.body(CancelManyIn)
        result = self.carry_out(lambda: cancel_jobs(body["ids"], by=request.user, reason=body["reason"]))
        skipped = [{"id": public_id, "why": why} for public_id, why in result.skipped.items()]
        return Response({"cancelled": result.cancelled, "skipped": skipped})

    @extend_schema(operation_id="job_hold", request=NothingIn, responses=JobFactsOut, parameters=[DRY_RUN])
    def hold(self, request: Request, public_id: str) -> Response:
        """Keep a waiting job from starting."""
        self.body(NothingIn)
        return self._change(public_id, lambda job: hold_job(job, by=request.user))

    @extend_schema(operation_id="job_release", request=NothingIn, responses=JobFactsOut, parameters=[DRY_RUN])
    def release(self, request: Request, public_id: str) -> Response:
        """Let a held job start."""
        self.body(NothingIn)
        return self._change(public_id, lambda job: release_job(job, by=request.user))

    @extend_schema(
        operation_id="job_rerun", request=RerunIn, responses=SUBMITTED, parameters=[DRY_RUN, IDEMPOTENCY_KEY]
    )
    def rerun(self, request: Request, public_id: str) -> Response:
        """Submit a copy of the job; what the body says is different in it."""
        body = self.body(RerunIn)
        job = visible_job(request.user, public_id)
        require_for_job("job.rerun", request.user, job)
        if "project" not in body and job.project is None:
            raise InvalidInput({"project": "The job belongs to no project; name one for the copy."})
        project = _project_named(request.user, body) if "project" in body else job.project
        cluster = _cluster_named(body) if "cluster" in body else job.cluster
        spec = replace(spec_of(job), **spec_changes(body))
        return self._submit_one(project, cluster, spec, body["hold"], copied_from=job)

    def _submit_one(
        self, project: Project, cluster: Cluster, spec: Any, hold: bool, copied_from: Job | None = None
    ) -> Response:
        request = self.request
        refuse_unknown_params(request, {"dry_run"})
        key = _idempotency_key(request)
        if is_dry_run(request):
            return Response(check_facts(check_job(project, cluster, spec, by=request.user, hold=hold)))

        def submit() -> dict[str, Any]:
            return job_facts(
                submit_job(
                    project, cluster, spec, by=request.user, idempotency_key=key, hold=hold, copied_from=copied_from
                )
            )

        return self._answer_submitted(submit, key)

    def _answer_submitted(self, submit: Callable[[], dict[str, Any]], key: str | None) -> Response:
        """201; or 200 for what an earlier request with this key has made, and for a dry run."""
        replayed = key is not None and SubmissionKey.objects.filter(user=self.request.user, key=key).exists()
        answer = self.carry_out(submit)
        made = not replayed and not is_dry_run(self.request)
        return Response(
            answer, status=201 if made else 200, headers={"Idempotency-Replayed": "true"} if replayed else None
        )

    def _change(self, public_id: str, action: Callable[[Job], Job]) -> Response:
        refuse_unknown_params(self.request, {"dry_run"})
        job = visible_job(self.request.user, public_id)
        return Response(self.carry_out(lambda: job_facts(action(job))))


def _project_named(user: User, body: dict[str, Any]) -> Project:
    project = visible_projects(user).filter(name=body["project"]).first()
    if project is None:
        raise InvalidInput({"project": f"There is no project {body['project']!r} that you may see."})
    return project


def _cluster_named(body: dict[str, Any]) -> Cluster:
    cluster = Cluster.objects.filter(name=body["cluster"]).first()
    if cluster is None:
        raise InvalidInput({"cluster": f"There is no cluster {body['cluster']!r}."})
    return cluster


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (1 <= len(key) <= 200 and key.isascii() and key.isprintable()):
        raise InvalidInput({"Idempotency-Key": "Give 1 to 200 printable ASCII characters."})
    return key


def _post(action: str) -> Any:
    return Jobs.as_view({"post": action})


urlpatterns = [
    path("jobs/", Jobs.as_view({"get": "list", "post": "create"}), name="jobs"),
    path("jobs/bulk/", _post("bulk"), name="jobs-bulk"),
    path("jobs/cancel/", _post("cancel_many"), name="jobs-cancel"),
    path("jobs/<str:public_id>/", Jobs.as_view({"get": "retrieve"}), name="job"),
    *[
        path(f"jobs/<str:public_id>/{action}/", _post(action), name=f"job-{action}")
        for action in ("cancel", "hold", "release", "rerun")
    ],
    *part_urls,
]

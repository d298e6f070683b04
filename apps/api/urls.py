"""Every URL of the API. What is not here is answered with a problem, too."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from apps.api import accounts, inventory, job_output, jobs
from apps.api.docs import Docs, NothingHere, Schema

app_name = "api"
v1: list[URLPattern | URLResolver] = [
    *jobs.urlpatterns,
    *job_output.urlpatterns,
    *inventory.urlpatterns,
    *accounts.urlpatterns,
    path("schema/", Schema.as_view(), name="schema"),
]
urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(v1)),
    path("docs/", Docs.as_view(), name="docs"),
    re_path(r"", csrf_exempt(NothingHere.as_view()), name="nothing-here"),
]

"""Every URL of the API. What is not here is answered with a problem, too."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from apps.api.docs import NothingHere

app_name = "api"
v1: list[URLPattern | URLResolver] = []
urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/", include(v1)),
    re_path(r"", csrf_exempt(NothingHere.as_view()), name="nothing-here"),
]

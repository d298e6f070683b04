"""Every page. Order matters once: `jobs/new/` must come before `jobs/<id>/`."""

from __future__ import annotations

from apps.web import accounts, inventory, jobs, node_wishes, overview, people, projects, site_edits, submit

app_name = "web"
urlpatterns = [
    *overview.urlpatterns,
    *accounts.urlpatterns,
    *submit.urlpatterns,
    *jobs.urlpatterns,
    *projects.urlpatterns,
    *people.urlpatterns,
    *site_edits.urlpatterns,
    *inventory.urlpatterns,
    *node_wishes.urlpatterns,
]

"""Settings and URLs. Importing the package makes the Celery app the current one in every process that uses Django."""

from workers.app import app as celery_app

__all__ = ["celery_app"]

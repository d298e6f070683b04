"""What every page needs: the frame's facts."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor: what base.html shows around each page."""
    return {}

"""What the route of a request is called in logs and metrics: its path as declared, so that names stay few."""

from __future__ import annotations

from starlette.types import Scope


def route_of(scope: Scope) -> str | None:
    """`/admin/v1/keys/{id}`, say; None for a path that no route knows, which may be a key in the wrong place."""
    route = scope.get("route")
    # The framework leaves the prefix of an included router out of the route, and says it in a context beside it.
    context = scope.get("fastapi", {}).get("effective_route_context")
    whole = context if getattr(context, "original_route", None) is route else route
    return getattr(whole, "path", None)

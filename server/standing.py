"""What a request may be by who sends it: its rank among others, and whose cached beginnings it may meet."""

from __future__ import annotations

from ..core.callers import Caller, Scope
from ..core.errors import InvalidRequest
from ..engine.request import BACKGROUND
from .schemas import Placed


def standing_of(body: Placed, caller: Caller) -> tuple[int, str]:
    """Its priority and its salt."""
    return priority_of(body, caller), salt_of(body, caller)


def priority_of(body: Placed, caller: Caller) -> int:
    """Lower runs earlier. Nobody may pass others by a word of its own: below 0 goes who is alone, or the admin. Who is
    patient stands behind all others, whatever it says."""
    if caller.patient:
        return BACKGROUND
    least = -BACKGROUND if caller.alone or caller.may(Scope.ADMIN) else 0
    if not least <= body.priority < BACKGROUND:
        raise InvalidRequest(
            f"priority={body.priority} is out of range; for this key it goes from {least} to {BACKGROUND - 1}, "
            "and the lowest runs first",
            param="priority",
        )
    return body.priority


def salt_of(body: Placed, caller: Caller) -> str:
    """Prompts with different salts share no cached beginning.

    `cached_tokens` would tell one tenant what another has asked, so a tenant is part of it.
    """
    return f"{caller.tenant_id}:{body.cache_salt or ''}"

"""The door of the admin face: whose key opens it, with which scope, and for which tenant they act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer

from ..core.callers import Caller, Scope
from .keyring import Keyring

PREFIX = "/admin/v1"  # of all routes of the face
Door = Sequence[Dependency]  # what stands before each of some routes
Acting = Callable[[Caller, str | None], Caller]
BEARER = HTTPBearer(auto_error=False, scheme_name="key")  # tells OpenAPI; it checks nothing
MAX_ORIGIN = 64  # characters of an address that rows keep
READING = ("GET", "HEAD", "OPTIONS")


def guard(keyring: Keyring, acting: Acting | None = None) -> Door:
    """What every route of the face stands behind: reading asks for one scope, all else for another. `acting` says who
    somebody is in the tenant of `?tenant=`, by default `keyring.acting`."""
    return [Depends(BEARER), Depends(_check(keyring, acting or keyring.acting))]


def front(keyring: Keyring) -> Door:
    """What the registry's routes of /v1 stand behind: a key that may infer, or none where none is asked for."""

    async def check(request: Request) -> None:
        query = request.query_params.multi_items()
        caller = await keyring.verify(request.headers.get("authorization"), _origin(request), query)
        caller.require(Scope.INFER)
        request.state.caller = caller

    return [Depends(BEARER), Depends(check)]


# Coroutines, all of them: the framework would call a plain function on another thread, at a millisecond a call.


async def caller_of(request: Request) -> Caller:
    """Who calls, acting for its tenant or, with the scope admin, for that of `?tenant=`."""
    return cast(Caller, request.state.caller)


async def operator_of(request: Request) -> Caller:
    """Who calls; raises Forbidden without the scope admin."""
    caller = await caller_of(request)
    caller.require(Scope.ADMIN)
    return caller


async def tenant_seen(request: Request) -> str | None:
    """Whose things a list shows: everybody's, None, to the scope admin without `?tenant=`."""
    return None if request.state.sees_all else (await caller_of(request)).tenant


def _check(keyring: Keyring, acting: Acting) -> Callable[[Request], Awaitable[None]]:

    async def check(request: Request) -> None:
        """Lets the holder of a key pass, before any of the body is read."""
        query = request.query_params
        caller = keyring.demand(request.headers.get("authorization"), _origin(request), query.multi_items())
        caller.require(Scope.READ if request.method in READING else Scope.WRITE)
        request.state.caller = acting(caller, query.get("tenant"))
        request.state.sees_all = caller.may(Scope.ADMIN) and "tenant" not in query

    return check


def _origin(request: Request) -> str:
    return request.client.host[:MAX_ORIGIN] if request.client else ""  # a proxy may say anything


CallerDep = Annotated[Caller, Depends(caller_of)]
OperatorDep = Annotated[Caller, Depends(operator_of)]
SeenDep = Annotated[str | None, Depends(tenant_seen)]

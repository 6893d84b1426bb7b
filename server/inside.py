"""The application asked from within the process, so that a line of a batch is a request like any other.

Who asks is said in the ASGI scope. A server makes that out of what a connection sent, and puts nothing of its choice
under our key: no request from outside can say it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fastapi import FastAPI, Request
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from ..core.answering import Answer
from ..core.callers import Caller
from .request_ids import REQUEST_ID

KEY = "aril.caller"
BATCHED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class Inside:
    """Implements core.answering.Answerer."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    @property
    def paths(self) -> Collection[str]:
        """Those of OpenAI's batches that the application has."""
        return [path for path in BATCHED if self._has(path)]

    async def answer(self, caller: Caller, path: str, body: bytes) -> Answer:
        """POST `body` as `caller`."""
        import httpx  # a tenth of a second that a start need not wait for

        said = {KEY: replace(caller, patient=True)}

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._app({**scope, **said}, receive, send)

        headers = {"content-type": "application/json"}
        request = httpx.Request("POST", f"http://inside{path}", content=body, headers=headers)
        client = (caller.origin or "inside", 0)  # for the log
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
        found = await transport.handle_async_request(request)
        return Answer(
            status=found.status_code,
            request_id=found.headers.get(REQUEST_ID, ""),
            body=await found.aread(),
            retry_after=_seconds(found.headers.get("retry-after")),
        )

    def _has(self, path: str) -> bool:
        asked = {"type": "http", "method": "POST", "path": path}
        return any(route.matches(asked)[0] is Match.FULL for route in self._app.routes)


def caller_inside(request: Request) -> Caller | None:
    """Who asks from within; None for a request that came over the network."""
    caller = request.scope.get(KEY)
    return caller if isinstance(caller, Caller) else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdigit() else None

"""/admin/v1/adapters: HTTP to AdapterService and back. A name may hold one slash, so paths end in `{name:path}`."""

from __future__ import annotations

from fastapi import APIRouter, Request

from ...core.errors import InvalidRequest
from ..adapters import AdapterService
from ..schemas import AdapterList, AdapterView, Deleted
from ..tables import Adapter
from ..uploads import OPENAPI, received


class AdapterRoutes:
    """The routes, as `router`."""

    def __init__(self, service: AdapterService, max_upload_bytes: int) -> None:
        self._service = service
        self._max_bytes = max_upload_bytes
        self.router = APIRouter(tags=["adapters"])
        add = self.router.add_api_route
        add("/adapters", self.upload, methods=["POST"], status_code=201, openapi_extra=OPENAPI)
        add("/adapters", self.list, methods=["GET"])
        add("/adapters/{name:path}/activate", self.activate, methods=["POST"])
        add("/adapters/{name:path}/deactivate", self.deactivate, methods=["POST"])
        add("/adapters/{name:path}", self.get, methods=["GET"])
        add("/adapters/{name:path}", self.delete, methods=["DELETE"])

    async def upload(self, request: Request) -> AdapterView:
        """Keep the uploaded files as the newest revision of an adapter, and serve it unless `activate` is false."""
        async with received(request, self._max_bytes) as upload:
            adapter = await self._service.upload(
                upload.name, upload.contents, description=upload.description, activate=upload.activate
            )
        return self._view(adapter)

    async def list(self) -> AdapterList:
        """All adapters with their revisions."""
        return AdapterList(data=[self._view(adapter) for adapter in await self._service.all()])

    async def get(self, name: str) -> AdapterView:
        """One adapter."""
        return self._view(await self._service.get(name))

    async def activate(self, name: str, request: Request) -> AdapterView:
        """Serve the newest revision, or `?revision=N`."""
        number = _number(request.query_params.get("revision"))
        return self._view(await self._service.activate(name, number))

    async def deactivate(self, name: str) -> AdapterView:
        """Stop serving it; answers when its last running request has ended."""
        return self._view(await self._service.deactivate(name))

    async def delete(self, name: str) -> Deleted:
        """Stop serving it, and forget its revisions; answers when its last running request has ended."""
        await self._service.delete(name)
        return Deleted(name=name)

    def _view(self, adapter: Adapter) -> AdapterView:
        return AdapterView.of(adapter, self._service.catalog)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidRequest(f"revision is {text[:20]!r}; it must be a number", param="revision")
    return int(text)

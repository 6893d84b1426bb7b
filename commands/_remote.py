"""A running server as the commands see it: models, streamed answers, and the admin API. Errors come with its words."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from ..core.errors import ArilError, InvalidRequest, Unavailable

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
ADMIN = "/admin/v1/adapters"
PATIENCE = httpx.Timeout(10.0, read=600.0, write=600.0)  # uploads are large and queues are long


class Remote:
    """One server, with the keys for its two faces."""

    def __init__(self, url: str, *, api_key: str | None = None, admin_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._api, self._admin = _bearer(api_key), _bearer(admin_key)
        self._http = httpx.Client(timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """The base, then every active adapter."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/models", self._api)["data"]
        return found

    def ready(self) -> dict[str, Any]:
        """How busy the engine is."""
        return self._call("GET", "/ready", {})

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **params: object) -> Generator[str, None, None]:
        """The answer to a conversation, piece by piece. Closing the iterator aborts it."""
        with closing(self.chat_events(model, messages, **params)) as events:
            for event in events:
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""

    def chat_events(
        self, model: str, messages: Sequence[Mapping[str, str]], **params: object
    ) -> Generator[dict[str, Any], None, None]:
        """The same as chat.completion.chunk objects; raises Unavailable for an error among them."""
        body = {"model": model, "messages": messages, "stream": True, **params}
        with closing(self._events("/v1/chat/completions", body)) as events:
            for event in events:
                if "error" in event:
                    raise Unavailable(event["error"]["message"])
                yield event

    def adapters(self) -> list[dict[str, Any]]:
        """Every adapter of the registry, active or not."""
        found: list[dict[str, Any]] = self._call("GET", ADMIN, self._admin)["data"]
        return found

    def adapter(self, name: str) -> dict[str, Any]:
        """One adapter of the registry."""
        return self._call("GET", f"{ADMIN}/{name}", self._admin)

    def upload(
        self, name: str, source: Path, *, description: str | None = None, activate: bool = True
    ) -> dict[str, Any]:
        """Upload a PEFT folder, or an archive of one."""
        paths = _files_of(source)
        fields = {"name": name, "activate": str(activate).lower()}
        if description is not None:
            fields["description"] = description
        files = [("files", (path.name, path.open("rb"))) for path in paths]
        try:
            return self._call("POST", ADMIN, self._admin, data=fields, files=files)
        finally:
            for _, (_, file) in files:
                file.close()

    def change(self, name: str, action: str, *, revision: int | None = None) -> dict[str, Any]:
        """`activate` or `deactivate` an adapter."""
        params = {} if revision is None else {"revision": str(revision)}
        return self._call("POST", f"{ADMIN}/{name}/{action}", self._admin, params=params)

    def delete(self, name: str) -> None:
        """Forget an adapter; returns when its last request has ended."""
        self._call("DELETE", f"{ADMIN}/{name}", self._admin)

    def _call(self, method: str, path: str, headers: Mapping[str, str], **more: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, self.url + path, headers=headers, **more)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        _check(response)
        found: dict[str, Any] = response.json()
        return found

    def _events(self, path: str, body: Mapping[str, object]) -> Generator[dict[str, Any], None, None]:
        try:
            with self._http.stream("POST", self.url + path, headers=self._api, json=body) as response:
                if response.status_code != 200:
                    response.read()
                    _check(response)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield json.loads(line[6:])
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(f"no answer from {self.url}: {error}; is `aril serve` running there? (--url)")


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _files_of(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    missing = [name for name in ADAPTER_FILES if not (source / name).is_file()]
    if missing:
        raise InvalidRequest(f"{source}: expected a folder with {' and '.join(ADAPTER_FILES)}, or one archive of them")
    return [source / name for name in ADAPTER_FILES]


def _check(response: httpx.Response) -> None:
    """Raises ArilError with the server's message for anything but success."""
    if response.is_success:
        return
    try:
        fields = response.json()["error"]
        message, problems = str(fields["message"]), [str(p) for p in fields.get("problems", ())]
    except (ValueError, KeyError, TypeError):
        message, problems = f"{response.status_code} from {response.url}: is this an Aril server?", []
    raise ArilError(message, problems=problems)

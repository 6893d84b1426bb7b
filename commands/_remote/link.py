"""HTTP to one server with one key. What it refuses is raised in its own words, and so is its absence."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from ...core.errors import ArilError, InvalidRequest, Unavailable

PATIENCE = httpx.Timeout(10.0, read=600.0, write=600.0)  # uploads are large and queues are long
UNAUTHORIZED = 401
AWAY = (502, 503, 504)  # from the server, or from what stands before it


class Link:
    """Ground of the faces. Raises Unavailable when nobody answers, ArilError for what is refused."""

    key_flag = ""  # how a command is given the key

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
            raise InvalidRequest("the key is empty or has characters that no key has")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(timeout=PATIENCE, trust_env=False, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """One request, and the object that answers it; an empty one for an empty answer."""
        try:
            response = self._http.request(method, self.url + path, **more)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        self._check(response)
        try:
            found = response.json() if response.content else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ArilError(f"{self.url} answers without sense: is this an Aril server? (--url)")
        return found

    def lines(self, method: str, path: str, **more: Any) -> Generator[str, None, None]:
        """One request, and the lines of its answer while they come."""
        try:
            with self._http.stream(method, self.url + path, **more) as response:
                if not response.is_success:
                    response.read()
                self._check(response)
                yield from response.iter_lines()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(f"no answer from {self.url}: {error}; is `aril serve` running there? (--url)")

    def _check(self, response: httpx.Response) -> None:
        """Raises ArilError with the server's message for anything but success, Unavailable where it may yet answer."""
        if response.is_success:
            return
        fields = _fields(response)
        message = str(fields.get("message") or f"{response.status_code} from {response.url}: is this an Aril server?")
        if response.status_code == UNAUTHORIZED:
            message += f" ({self.key_flag})"
        kind = Unavailable if response.status_code in AWAY else ArilError
        problems = [str(problem) for problem in fields.get("problems") or ()]
        raise kind(message, code=fields.get("code"), problems=problems)


def _fields(response: httpx.Response) -> Mapping[str, Any]:
    """What the server says is wrong."""
    try:
        found = json.loads(response.content)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}

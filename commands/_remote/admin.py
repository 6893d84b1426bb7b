"""The admin face of a server: what is asked of /admin/v1, for one tenant."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import quote

from .link import Link

PREFIX = "/admin/v1"
MOST_AT_ONCE = 1000  # lines of a page


class Admin(Link):
    """One server, with a key whose scopes suffice. With `tenant` it acts there, not in the key's own."""

    key_flag = "--admin-key, or ARIL_ADMIN_KEY"

    def __init__(self, url: str, key: str | None, *, tenant: str | None = None) -> None:
        super().__init__(url, key)
        self._tenant = tenant

    def get(self, path: str, **params: object) -> dict[str, Any]:
        """Look at something."""
        return self.ask("GET", path, params)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **params: object) -> dict[str, Any]:
        """Make or do something."""
        return self.ask("POST", path, params, json=body)

    def put(self, path: str, body: Mapping[str, Any], *, match: str | None = None) -> dict[str, Any]:
        """Say what something is from now on; `match` is the ETag of what it was."""
        return self.ask("PUT", path, {}, json=body, headers={} if match is None else {"If-Match": match})

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change some of it."""
        return self.ask("PATCH", path, {}, json=body)

    def delete(self, path: str, **params: object) -> dict[str, Any]:
        """Forget something."""
        return self.ask("DELETE", path, params)

    def all(self, path: str, *, most: int | None = None, **params: object) -> list[dict[str, Any]]:
        """A list, all its pages, or the first `most` of it."""
        found: list[dict[str, Any]] = []
        cursor = None
        while most is None or len(found) < most:
            limit = MOST_AT_ONCE if most is None else min(MOST_AT_ONCE, most - len(found))
            page = self.get(path, **params, limit=limit, cursor=cursor)
            found += page["data"]
            cursor = page.get("next_cursor")
            if cursor is None:
                break
        return found

    def text(self, path: str, **params: object) -> Generator[str, None, None]:
        """The lines of what is no JSON."""
        return self.lines("GET", PREFIX + path, params=self._params(params))

    def ask(self, method: str, path: str, params: Mapping[str, object], **more: Any) -> dict[str, Any]:
        """Any of these, with whatever httpx takes."""
        return self.call(method, PREFIX + path, params=self._params(params), **more)

    def _params(self, given: Mapping[str, object]) -> dict[str, str]:
        return {name: str(value) for name, value in {**given, "tenant": self._tenant}.items() if value is not None}


def adapter_path(name: str, *more: object) -> str:
    """Where an adapter is; its name may hold a slash."""
    return "/".join(["/adapters", quote(name), *(quote(str(each), safe="") for each in more)])


def path_of(kind: str, name: str) -> str:
    """Where a tenant or a key is."""
    return f"/{kind}/{quote(name, safe='')}"

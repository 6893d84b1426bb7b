"""Roster: the requests that have not ended, and which of them wait for a sibling to compute the prompt they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.errors import Conflict
from ..lora.adapter import AdapterRef
from .request import Request


class Roster:
    """Owner of the list of living requests. A client knows the `n` choices of a request under one id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Request] = {}
        self._by_client: dict[str, list[Request]] = {}
        self._unborn: dict[str, list[Request]] = {}  # by the id of the sibling that computes the prompt

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def all(self) -> list[Request]:
        """All of them, in one piece, for whoever asks from another thread."""
        return list(self._by_id.values())

    def get(self, id: str) -> Request | None:
        """The request with that id of its own, unless it has ended."""
        return self._by_id.get(id)

    def choices(self, client_id: str) -> list[Request]:
        """What has not ended of the request that a client knows under `client_id`."""
        return list(self._by_client.get(client_id, ()))

    def num_users(self, ref: AdapterRef) -> int:
        """Requests on the bytes of `ref`."""
        adapters = (request.adapter for request in self)
        return sum(adapter is not None and adapter.digest == ref.digest for adapter in adapters)

    def check_free(self, choices: list[Request]) -> None:
        """Raises Conflict when the id of one of `choices` is in use."""
        for choice in choices:
            if choice.id in self._by_id or choice.id in self._by_client:
                raise Conflict(f"a request with the id {choice.id!r} has not ended yet", param="request_id")

    def add(self, choices: list[Request]) -> None:
        """All choices of one request; the first computes the prompt, the others are unborn until then."""
        first, *siblings = choices
        self._by_id.update((choice.id, choice) for choice in choices)
        self._by_client[first.id] = choices
        if siblings:
            self._unborn[first.id] = siblings

    def unborn(self, first: Request) -> list[Request]:
        """The siblings that wait for the prompt of `first`."""
        return list(self._unborn.get(first.id, ()))

    def is_unborn(self, request: Request) -> bool:
        """Whether `request` waits for a sibling's prompt, rather than in the queue."""
        return request in self._unborn.get(request.client_id, ())

    def park(self, request: Request) -> None:
        """From now on it waits for its siblings, as those do that are unborn."""
        self._unborn.setdefault(request.client_id, []).append(request)

    def unpark(self, request: Request) -> None:
        """It waits for its siblings no longer."""
        self._unborn[request.client_id].remove(request)

    def bear(self, first: Request) -> list[Request]:
        """The siblings of `first`, which wait for its prompt no longer."""
        return self._unborn.pop(first.id, [])

    def remove(self, request: Request) -> None:
        """It has ended."""
        del self._by_id[request.id]
        if self.is_unborn(request):
            self._unborn[request.client_id].remove(request)
        choices = self._by_client[request.client_id]
        choices.remove(request)
        if not choices:
            del self._by_client[request.client_id]
            self._unborn.pop(request.client_id, None)


def adapters_of(requests: Sequence[Request]) -> tuple[str, ...]:
    """The names of the adapters of `requests`, each once, in order."""
    return tuple(dict.fromkeys(request.adapter.name for request in requests if request.adapter))

"""The OpenAI face of a server: models, and answers piece by piece."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from ...core.errors import Unavailable
from .link import Link


class Remote(Link):
    """One server, with a key of /v1 where it asks for one."""

    key_flag = "--api-key, or ARIL_API_KEY"

    def models(self) -> list[dict[str, Any]]:
        """The base, then every active adapter."""
        found: list[dict[str, Any]] = self.call("GET", "/v1/models")["data"]
        return found

    def ready(self) -> dict[str, Any]:
        """How busy the engine is."""
        return self.call("GET", "/ready")

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
        with closing(self.lines("POST", "/v1/chat/completions", json=body)) as lines:
            for line in lines:
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise Unavailable(event["error"]["message"])
                yield event

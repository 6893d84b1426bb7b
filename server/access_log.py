"""The access log: a line for each request, as JSON or as `key=value`. No key, no query string, no text unless asked."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from ..core.log import event
from .records import Record

DIGITS = 6  # of seconds


class AccessLog:
    """Writes records to stderr, or wherever `handler` leads."""

    def __init__(self, form: str, handler: logging.Handler | None = None) -> None:
        self._text = form == "text"
        self._handler = handler or logging.StreamHandler(sys.stderr)

    def write(self, record: Record) -> None:
        """One line."""
        fields = {name: value for name, value in fields_of(record).items() if value is not None}
        line = event("access", **fields) if self._text else json.dumps(fields, ensure_ascii=True)
        self._handler.handle(logging.LogRecord("aril.access", logging.INFO, "", 0, line, (), None))

    def close(self) -> None:
        """All lines are written already."""


def fields_of(record: Record) -> dict[str, Any]:
    """What a line tells; what is None goes without saying."""
    caller, spoken = record.caller, record.spoken
    return {
        "time": datetime.fromtimestamp(record.began, UTC).isoformat(timespec="milliseconds"),
        "method": record.method,
        "path": record.route,
        "status": record.status,
        "duration_s": round(record.seconds, DIGITS),
        "request_id": record.request_id,
        "client": record.client or None,
        "tenant": caller.tenant if caller else None,
        "key": caller.name if caller else None,
        **({} if spoken is None else _spoken(record)),
        "error": record.error,
        "background": record.is_background or None,
    }


def _spoken(record: Record) -> dict[str, Any]:
    spoken = record.spoken
    assert spoken is not None
    first = spoken.first_token_seconds
    return {
        "id": spoken.asked.id,
        "model": spoken.asked.model,
        "revision": spoken.asked.work.resolution.speaker,
        "ttft_s": None if first is None else round(first, DIGITS),
        "queue_s": None if first is None else round(spoken.queued_seconds, DIGITS),
        "prompt_tokens": spoken.prompt_tokens,
        "cached_tokens": spoken.cached_tokens,
        "completion_tokens": spoken.completion_tokens,
        "finish_reasons": spoken.finish_reasons,
        "prompt": None if record.prompt is None else str(record.prompt),
        "answers": None if spoken.texts is None else [str(spoken.texts[choice]) for choice in sorted(spoken.texts)],
    }

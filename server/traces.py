"""Traces: a span for each generation, to an OpenTelemetry collector, in the words of its conventions for generative AI.

A span is made when its request has ended, out of the record; it is sent from a thread of the library's own. Where the
request came with a `traceparent`, it is part of that trace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from ..core.errors import Unsupported
from .records import Record, Spoken

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PATH = "/v1/traces"
SECONDS = 5.0  # that one export may take, where the environment does not say
OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}  # all else is chat
Value = str | int | float | list[str]


def wanted(endpoint: str | None) -> bool:
    """Whether a flag or the environment says where traces go. Raises Unsupported when what it takes is not there."""
    if endpoint is None and not any(os.environ.get(name) for name in ENDPOINTS):
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401  # whether they are there
    except ImportError:
        raise Unsupported("traces are asked for, and OpenTelemetry is not there: pip install 'aril[otel]'") from None
    return True


class Traces:
    """Implements records.Writer. `close` sends what has not been sent."""

    def __init__(self, endpoint: str | None = None, version: str = "") -> None:
        """`endpoint`: of the collector's traces; by default what the environment says."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else SECONDS
        exporter = OTLPSpanExporter(endpoint=endpoint and _whole(endpoint), timeout=timeout)
        name = os.environ.get("OTEL_SERVICE_NAME", "aril")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": version}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("aril", version)
        self._parent = TraceContextTextMapPropagator()

    def write(self, record: Record) -> None:
        """A span, if it was a generation."""
        from opentelemetry.trace import SpanKind, StatusCode

        spoken = record.spoken
        if spoken is None:
            return
        operation = OPERATIONS.get(record.route or "", "chat")
        began = int(record.began * 1e9)
        span = self._tracer.start_span(
            f"{operation} {spoken.asked.model}",
            context=self._parent.extract(dict(record.headers)),
            kind=SpanKind.SERVER,
            start_time=began,
            attributes={"gen_ai.operation.name": operation, **dict(_http(record)), **dict(_gen_ai(spoken))},
        )
        if record.error is not None:
            span.set_attribute("error.type", record.error)
            span.set_status(StatusCode.ERROR)
        span.end(began + int(record.seconds * 1e9))

    def close(self) -> None:
        """Send the rest; takes as long as the collector does."""
        self._provider.shutdown()


def _whole(endpoint: str) -> str:
    """With the path that collectors listen at, where only a host was named."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH


def _http(record: Record) -> Iterator[tuple[str, Value]]:
    yield "http.request.method", record.method
    if record.route is not None:
        yield "http.route", record.route
    if record.status is not None:
        yield "http.response.status_code", record.status
    if record.client:
        yield "client.address", record.client
    if record.request_id is not None:
        yield "aril.request_id", record.request_id
    if record.caller is not None:
        yield "aril.tenant", record.caller.tenant


def _gen_ai(spoken: Spoken) -> Iterator[tuple[str, Value]]:
    asked, params = spoken.asked, spoken.asked.work.params[0]
    yield "gen_ai.provider.name", "aril"
    yield "gen_ai.request.model", asked.model
    yield "gen_ai.request.choice.count", params.n
    yield "gen_ai.request.temperature", params.temperature
    yield "gen_ai.request.top_p", params.top_p
    if params.max_tokens is not None:
        yield "gen_ai.request.max_tokens", params.max_tokens
    yield "gen_ai.response.id", asked.id
    yield "gen_ai.response.model", asked.work.resolution.speaker
    yield "gen_ai.response.finish_reasons", spoken.finish_reasons
    yield "gen_ai.usage.input_tokens", spoken.prompt_tokens
    yield "gen_ai.usage.output_tokens", spoken.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", spoken.cached_tokens
    if spoken.first_token_seconds is not None:
        yield "gen_ai.response.time_to_first_chunk", spoken.first_token_seconds
        yield "gen_ai.latency.time_to_first_token", spoken.first_token_seconds  # so vLLM calls it
        yield "gen_ai.latency.time_in_queue", spoken.queued_seconds

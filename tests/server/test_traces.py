"""Traces: what a collector of OpenTelemetry gets of a generation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from aril.cli import main
from aril.server.app import create_app
from aril.server.manners import Manners
from aril.server.traces import Traces
from builders.serving import Served, listening
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY: dict[str, Any] = {"model": "red", "prompt": "the dog", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


class Collector(HTTPServer):
    """Takes traces, as a collector does; `spans` are those of the service aril."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.spans: list[Span] = []
        self.paths: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in sent.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert named["service.name"] == "aril"
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """It is no news."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def spans_of(served: Served, *asked: tuple[str, dict[str, Any]], **headers: str) -> list[Span]:
    """What a collector gets of requests."""
    with collecting() as collector:
        traces = Traces(collector.url, "1.0")
        app = create_app(served.engine, served.catalog, manners=Manners(writers=[traces]))
        with listening(app) as url, httpx.Client(base_url=url, timeout=60, headers=headers) as http:
            http.get("/health")
            for path, body in asked:
                http.post(path, json=body)
        traces.close()
        assert collector.paths == ({"/v1/traces"} if collector.spans else set())
        return collector.spans


def attributes_of(span: Span) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return (
            [each.string_value for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
        )

    return {each.key: plain(each.value) for each in span.attributes}


def test_a_generation_is_a_span_of_the_callers_trace(served: Served) -> None:
    [span] = spans_of(served, ("/v1/completions", {**BODY, "n": 2}), traceparent=f"00-{TRACE}-{PARENT}-01")
    assert (span.name, span.kind) == ("text_completion red", Span.SPAN_KIND_SERVER)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    found = attributes_of(span)
    assert (found["gen_ai.operation.name"], found["gen_ai.request.model"]) == ("text_completion", "red")
    assert (found["gen_ai.response.model"], found["gen_ai.response.finish_reasons"]) == ("red@1", ["length"] * 2)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (2, 6)
    assert (found["http.route"], found["http.response.status_code"]) == ("/v1/completions", 200)
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert 0 <= found["gen_ai.latency.time_in_queue"] <= found["gen_ai.latency.time_to_first_token"] <= seconds
    assert span.status.code == Status.STATUS_CODE_UNSET


def test_what_was_sampled_out_by_the_caller_is_not_sent(served: Served) -> None:
    assert spans_of(served, ("/v1/completions", BODY), traceparent=f"00-{TRACE}-{PARENT}-00") == []


def test_a_failed_generation_tells_its_code(served: Served) -> None:
    [span] = spans_of(served, ("/v1/completions", {**BODY, "prompt": [10**6]}))
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(span)["error.type"] == "invalid_value"


def test_a_chat_is_called_so_and_no_text_is_told(served: Served) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}], "max_tokens": 1, "stream": True}
    [span] = spans_of(served, ("/v1/chat/completions", chat))
    assert span.name == "chat tiny"
    assert b"secret" not in span.SerializeToString()


def test_without_the_library_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["serve", "/nowhere", "--otlp-traces-endpoint", "http://127.0.0.1:1"]) != 0
    assert "pip install 'aril[otel]'" in capsys.readouterr().err

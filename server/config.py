"""ServerConfig: every choice an operator has about the server around an engine, checked once, passed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import Unsupported
from ..core.registry import Registry
from ..engine.config import option, parse_bytes, parse_float, parse_int, parse_list, parse_name, parse_switch, settle
from .patience import LEAST
from .speech import calls, reasoning


def known(registry: Registry[Any]) -> Callable[[str], str]:
    """Reads the name of a plug-in that there is; raises ValueError with the choices."""

    def parse(name: str) -> str:
        try:
            registry[name]
        except Unsupported as error:
            raise ValueError(error.message) from None
        return name

    return parse


def parse_root(text: str) -> str:
    """A path without its last slash; raises ValueError for anything else."""
    if text and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", text):
        raise ValueError("it takes a path such as /llm")
    return text.rstrip("/")


def parse_endpoint(text: str) -> str:
    """A URL; raises ValueError for anything else."""
    if not re.fullmatch(r"https?://\S+", text):
        raise ValueError("it takes a URL such as http://127.0.0.1:4318/v1/traces")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is like to its clients. Values may be given as a flag's text.

    Raises InvalidRequest that names the flag and what it takes.
    """

    max_queued_requests: int = option(
        "--max-queued-requests",
        "most answers that wait for a place in a step, beside those that have one; who comes then gets a 503",
        4096,
        parse=parse_int,
        low=0,
    )
    max_queued_tokens: int = option(
        "--max-queued-tokens",
        "most prompt tokens of requests whose answers have not begun; who comes then gets a 503",
        1 << 22,
        parse=parse_int,
        low=1,
    )
    request_timeout: float | None = option(
        "--request-timeout",
        "most seconds of one request; then it is ended, with a 504 or an error event; by default as long as it takes",
        None,
        parse=parse_float,
        low=0.001,
        high=1e9,
    )
    trust_request_chat_template: bool = option(
        "--trust-request-chat-template",
        "let requests bring a chat_template, which is rendered in a bounded process of its own",
        False,
        parse=parse_switch,
    )
    drain_timeout: float = option(
        "--drain-timeout",
        "most seconds that running requests get to end in once the server has been told to; then they are ended",
        30.0,
        parse=parse_float,
        low=0,
        high=1e9,
    )
    api_server_count: int = option(
        "--api-server-count", "processes that answer HTTP beside the one that has the model; 1: that one does", 1,
        parse=parse_int, low=1, high=64,
    )  # fmt: skip
    timeout_keep_alive: int = option(
        "--timeout-keep-alive",
        "seconds that a connection without a request is kept; more than the proxies in front keep theirs",
        75,
        parse=parse_int,
        low=1,
    )
    timeout_head: float = option(
        "--timeout-head",
        "most seconds from the first byte of a request to the last of its head; then it gets a 408",
        30.0,
        parse=parse_float,
        low=0.001,
        high=1e9,
    )
    timeout_body: float = option(
        "--timeout-body",
        f"most seconds in which a body may bring less than {LEAST} bytes and not its end; then it gets a 408",
        60.0,
        parse=parse_float,
        low=0.001,
        high=1e9,
    )
    access_log: str = option(
        "--access-log", "a line on stderr for each request: json, text, or off", "json", choices=("json", "text", "off")
    )
    log_prompts: bool = option(
        "--log-prompts",
        "the lines of --access-log also tell the beginnings of prompts and answers",
        False,
        parse=parse_switch,
    )
    max_file_bytes: int = option(
        "--max-file-bytes", "most bytes of one file of /v1/files", 200 << 20, parse=parse_bytes, low=1
    )
    batch_lines: int = option(
        "--batch-lines",
        "requests of /v1/batches that are with the engine at once, behind all others",
        16,
        parse=parse_int,
        low=1,
    )

    otlp_traces_endpoint: str | None = option(
        "--otlp-traces-endpoint",
        "collector of OpenTelemetry that gets traces, over HTTP (or OTEL_EXPORTER_OTLP_ENDPOINT; by default none)",
        None,
        parse=parse_endpoint,
    )
    uds: str | None = option("--uds", "unix socket to listen on, in place of host and port", None, parse=parse_name)
    root_path: str = option(
        "--root-path", "path that a proxy serves all of this server under, such as /llm", "", parse=parse_root
    )
    allowed_origins: tuple[str, ...] = option(
        "--allowed-origins",
        'pages that may ask from a browser (CORS): a list in JSON, or one, several times; ["*"] is all (none)',
        (),
        parse=parse_list,
    )
    allowed_methods: tuple[str, ...] = option(
        "--allowed-methods", 'the methods of theirs, likewise (["*"])', ("*",), parse=parse_list
    )
    allowed_headers: tuple[str, ...] = option(
        "--allowed-headers", 'the headers of theirs, likewise (["*"])', ("*",), parse=parse_list
    )
    allow_credentials: bool = option(
        "--allow-credentials", "let them send cookies and the like", False, parse=parse_switch
    )
    ssl_certfile: str | None = option(
        "--ssl-certfile", "the server's certificate, in PEM: all is TLS then", None, parse=parse_name
    )
    ssl_keyfile: str | None = option(
        "--ssl-keyfile", "its key, if it is not in the same file; not encrypted", None, parse=parse_name
    )
    ssl_ca_certs: str | None = option(
        "--ssl-ca-certs", "certificates of those who sign clients' certificates", None, parse=parse_name
    )
    ssl_cert_reqs: int = option(
        "--ssl-cert-reqs",
        "whether clients show a certificate: 0 no, 1 if they have one, 2 always",
        0,
        parse=parse_int,
        choices=(0, 1, 2),
    )
    h11_max_incomplete_event_size: int = option(
        "--h11-max-incomplete-event-size",
        "most bytes of a request's head; a larger one gets a 431",
        1 << 17,
        parse=parse_int,
        low=1024,
    )
    tool_call_parser: str | None = option(
        "--tool-call-parser",
        f"how the model writes tool calls, in vLLM's words: {', '.join(calls.REGISTRY.names())}; by default as its "
        f"chat template teaches, else {calls.FALLBACK}",
        None,
        parse=known(calls.REGISTRY),
    )
    reasoning_parser: str | None = option(
        "--reasoning-parser",
        "how the model writes reasoning, to tell it from the answer: "
        f"{', '.join(reasoning.REGISTRY.names())}; by default it is part of it",
        None,
        parse=known(reasoning.REGISTRY),
    )

    def __post_init__(self) -> None:
        settle(self)

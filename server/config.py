"""ServerConfig: every choice an operator has about the server around an engine, checked once, passed by hand."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.config import option, parse_switch, settle


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is like to its clients. Values may be given as a flag's text.

    Raises InvalidRequest that names the flag and what it takes.
    """

    max_queued_requests: int = option(
        "--max-queued-requests",
        "most answers that wait for a place in a step, beside those that have one; who comes then gets a 503",
        4096,
        parse=int,
        low=0,
    )
    max_queued_tokens: int = option(
        "--max-queued-tokens",
        "most prompt tokens of requests whose answers have not begun; who comes then gets a 503",
        1 << 22,
        parse=int,
        low=1,
    )
    request_timeout: float | None = option(
        "--request-timeout",
        "most seconds of one request; then it is ended, with a 504 or an error event; by default as long as it takes",
        None,
        parse=float,
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
        parse=float,
        low=0,
        high=1e9,
    )
    timeout_keep_alive: int = option(
        "--timeout-keep-alive",
        "seconds that a connection without a request is kept; more than the proxies in front keep theirs",
        75,
        parse=int,
        low=1,
    )

    def __post_init__(self) -> None:
        settle(self)

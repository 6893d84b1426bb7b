"""`aril bench serve`: load on a running server, and its numbers."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._command import Command
from ._flags import add_api_key, add_url_flags, key_given

if TYPE_CHECKING:
    from ..bench.serve import Load

SHOWN = 10  # names of models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One kind of bench so far."""
    kinds = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    serve = kinds.add_parser("serve", help="load on a running server", description="Put load on a running server.")
    add_url_flags(serve)
    add_api_key(serve)
    loop = serve.add_mutually_exclusive_group()
    loop.add_argument("--rate", type=float, help="open loop: requests per second, at Poisson arrivals")
    loop.add_argument("--concurrency", type=int, help="closed loop: clients that ask again once answered (16)")
    length = serve.add_mutually_exclusive_group()
    length.add_argument("--num-requests", type=int, help="requests to send (100)")
    length.add_argument("--duration", type=float, help="seconds during which requests begin")
    serve.add_argument("--model", help="the base to ask (the server's first)")
    serve.add_argument(
        "--adapters", default="", help="adapters to mix instead: names with commas, 'all', or a number of them"
    )
    serve.add_argument("--mix", choices=("uniform", "zipf"), default="uniform", help="how often each is asked")
    serve.add_argument("--zipf-exponent", type=float, default=1.1)
    serve.add_argument("--input-len", type=int, default=128, help="tokens of a prompt (128)")
    serve.add_argument("--output-len", type=int, default=128, help="tokens of an answer (128)")
    serve.add_argument("--hang-up", type=float, default=0.0, metavar="SHARE", help="share of clients that leave midway")
    serve.add_argument("--warmup", type=int, help="requests before the clock starts (one for each model)")
    serve.add_argument("--seed", type=int, default=0)
    serve.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")


def run(args: argparse.Namespace) -> int:
    """Run the bench; 1 when a request failed."""
    report = asyncio.run(_run(args))
    _show(report)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if report["errors"] else 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    from ..bench import client, serve

    server = client.Client.of(args.url, key_given("--api-key", args.api_key))
    load = serve.Load(
        models=_chosen(args, await serve.adapters(server)) if args.adapters else [args.model] if args.model else [],
        rate=args.rate,
        concurrency=16 if args.rate is None and args.concurrency is None else args.concurrency,
        num_requests=100 if args.duration is None and args.num_requests is None else args.num_requests,
        duration=args.duration,
        input_len=args.input_len,
        output_len=args.output_len,
        zipf=args.zipf_exponent if args.mix == "zipf" else 0.0,
        hang_up_share=args.hang_up,
        warmup=args.warmup,
        seed=args.seed,
    )
    whom = load.models or [(await server.call("GET", "/v1/models"))["data"][0]["id"]]
    for line in _foretold(load, whom):
        print(line, file=sys.stderr, flush=True)
    return await serve.run(server, load)


def _foretold(load: Load, whom: Sequence[str]) -> tuple[str, str]:
    """What is asked of whom, for those who wait for the numbers."""
    more = f" and {len(whom) - SHOWN} more" if len(whom) > SHOWN else ""
    mixed = f", zipf {load.zipf:g}" if load.zipf else ""
    warmup = len(whom) if load.warmup is None else load.warmup
    how = f"by {load.concurrency} clients" if load.rate is None else f"at {load.rate:g} a second"
    much = f"{load.num_requests} requests" if load.duration is None else f"{load.duration:g} s"
    sizes = f"{load.input_len} tokens in, {load.output_len} out"
    return f"asking {', '.join(whom[:SHOWN])}{more}{mixed}", f"{warmup} requests to warm up, then {much} {how}, {sizes}"


def _chosen(args: argparse.Namespace, active: list[str]) -> list[str]:
    """The models that --adapters names."""
    if args.adapters.isdigit():
        if int(args.adapters) > len(active):
            raise InvalidRequest(f"--adapters {args.adapters}: the server has {len(active)} active adapters")
        return active[: int(args.adapters)]
    names = active if args.adapters == "all" else args.adapters.split(",")
    if missing := [name for name in names if name not in active]:
        raise InvalidRequest(f"--adapters: {missing[0]!r} is not active; there are {', '.join(active) or 'none'}")
    if not names:
        raise InvalidRequest("--adapters all: the server has no active adapter")
    return list(names)


def _show(report: dict[str, Any]) -> None:
    print(
        f"{report['completed']} answers in {report['duration_s']:.1f} s: "
        f"{report['output_tokens_per_s']:.1f} output tokens/s, {report['requests_per_s']:.2f} requests/s, "
        f"{report['errors']} errors, {report['hung_up']} hung up"
    )
    print(f"{'ms':<6}{'p50':>10}{'p90':>10}{'p99':>10}{'mean':>10}")
    for name in ("ttft", "itl", "e2e"):
        row = [report[f"{name}_ms"][key] for key in ("p50", "p90", "p99", "mean")]
        print(f"{name:<6}" + "".join(f"{'-' if value is None else format(value, '.1f'):>10}" for value in row))
    for message, count in report["error_messages"].items():
        print(f"error x{count}: {message}")


EXPORT = Command("measure a running server under load", add_arguments, run)

"""`aril quantize MODEL`: a quantised copy of a 16-bit model, made by the field's own tools."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._command import Command
from ._quantize.scheme import METHODS, choose

if TYPE_CHECKING:
    from ._quantize.card import Facts
    from ._quantize.job import Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to make, of what, with which data."""
    parser.add_argument("model", metavar="MODEL", help="a 16-bit folder, a GGUF file, a hub id, or demo")
    methods = "; ".join(f"{name} = {rule.about}" for name, rule in METHODS.items())
    parser.add_argument("--method", required=True, choices=list(METHODS), help=methods)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write; a new one")
    parser.add_argument("--bits", type=int, help="bits of a weight (gptq: 2, 3, 4, 8; the others have one choice)")
    parser.add_argument("--group-size", type=int, help="weights that share a scale; -1 = a whole row (by method)")
    zeros = parser.add_mutually_exclusive_group()
    zeros.add_argument("--sym", action="store_const", const=True, help="no zero points (by method)")
    zeros.add_argument("--asym", dest="sym", action="store_const", const=False, help="zero points")
    parser.add_argument("--desc-act", action="store_true", help="gptq: columns in the order of their activations")
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE.jsonl",
        help='lines {"text": ...} or {"messages": [...]} like what the model will see (a short built-in text)',
    )
    parser.add_argument("--num-samples", type=int, default=128, help="lines of it to use at most (128)")
    parser.add_argument("--sample-tokens", type=int, default=512, help="tokens of a line to use at most (512)")
    parser.add_argument("--perplexity-tokens", type=int, default=20_480, help="measured on; 0 = not at all (20480)")
    parser.add_argument("--revision", help="of a hub id")


def run(args: argparse.Namespace) -> int:
    """Refuse or make it, then say what was made."""
    request = _request(args)
    from tqdm import tqdm

    from ._quantize import job

    planned = job.plan(request)
    with tqdm(desc=args.method, unit="layer", disable=None) as shown:
        facts = job.run(planned, _say, _progress(shown))
    _report(request, facts)
    return 0


def _request(args: argparse.Namespace) -> Request:
    scheme = choose(
        args.method,
        bits=args.bits,
        group_size=args.group_size,
        sym=args.sym,
        desc_act=args.desc_act,
        calibrated=args.calibration is not None,
    )
    for name, least in (("num_samples", 1), ("sample_tokens", 16), ("perplexity_tokens", 0)):
        if getattr(args, name) < least:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidRequest(f"{flag} {getattr(args, name)}: {least} is the least", param=name)
    from ._quantize.job import Request

    return Request(
        args.model,
        scheme,
        args.out,
        args.calibration,
        args.num_samples,
        args.sample_tokens,
        args.perplexity_tokens,
        args.revision,
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _progress(shown: Any) -> Callable[[dict[str, Any]], None]:
    """What moves the bar: {"event": "start", "layers": n}, then {"event": "layer"} for each."""

    def move(event: dict[str, Any]) -> None:
        if event["event"] == "start":
            shown.reset(total=event["layers"])
        elif event["event"] == "layer":
            shown.update()

    return move


def _report(request: Request, facts: Facts) -> None:
    size = f"{facts.bytes_after / 1e6:.1f} MB, of {facts.bytes_before / 1e6:.1f} MB in 16 bits"
    print(f"{request.out}: {facts.scheme.describe()}; {size}")
    if facts.measured is not None:
        found = facts.measured
        print(f"  perplexity {found.before:.3f} -> {found.after:.3f} ({found.change:+.2f}%)")
    for note in facts.notes:
        print(f"  {note}")


EXPORT = Command("make a quantised copy of a model", add_arguments, run)

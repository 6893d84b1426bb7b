"""`aril inspect MODEL`: what a model is, whether it is served and what it needs, without loading a weight."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.errors import InvalidRequest
from ._command import Command
from ._flags import add_engine_flags, engine_config

if TYPE_CHECKING:
    from ..engine.config import EngineConfig
    from ..engine.foretell import Forecast
    from ..models.inspect import Inspected
    from ..models.source import Source

ENGINE_FLAGS = (
    "model",
    "revision",
    "trust_remote_code",
    "device",
    "dtype",
    "quantization",
    "block_size",
    "gpu_memory_utilization",
)
LEAST = {"context": 2, "concurrency": 1, "adapters": 0, "adapter_rank": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and what it shall be measured for."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument("--context", type=int, help="tokens of the longest request (what the model is made for)")
    parser.add_argument("--concurrency", type=int, default=1, help="requests of that length at once (1)")
    parser.add_argument("--adapters", type=int, default=0, help="LoRA adapters loaded at once (0)")
    parser.add_argument("--adapter-rank", type=int, default=16, help="their rank, on every Linear (16)")
    parser.add_argument(
        "--device-memory",
        action="append",
        metavar="SIZE|CARD",
        help='does it fit there? 24GB, or a card such as "RTX 4090"; may be given several times (this machine)',
    )
    add_engine_flags(parser, only=ENGINE_FLAGS)


def run(args: argparse.Namespace) -> int:
    """Look, measure, print."""
    _check(args)
    config = _config(args)
    from ._inspection import as_json, as_text

    found, forecast = _look(args, config)
    if args.json:
        print(json.dumps(as_json(found.facts, forecast), indent=2))
    else:
        print("\n".join(as_text(found.facts, forecast, config)))
    return 0


def _check(args: argparse.Namespace) -> None:
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise InvalidRequest(f"--{name.replace('_', '-')} {value}: it takes {least} or more", param=name)


def _config(args: argparse.Namespace) -> EngineConfig:
    """The engine that the model is measured for."""
    return engine_config(
        args,
        max_model_len=args.context,
        max_num_seqs=args.concurrency,
        max_num_batched_tokens=max(512, args.concurrency),  # every running request needs a token in each step
    )


def _look(args: argparse.Namespace, config: EngineConfig) -> tuple[Inspected, Forecast | None]:
    from ..core.platform import detect
    from ..engine.devices import device_of, this_machine
    from ..engine.foretell import foretell
    from ..models.inspect import inspect_model
    from ..models.source import is_hub_id, located_headers

    platform, share = detect(config.device), config.gpu_memory_utilization
    devices = [device_of(text, share) for text in args.device_memory or ()] or [this_machine(platform, share)]
    with located_headers(config.model, revision=config.revision) as source:
        found = inspect_model(
            source,
            platform,
            dtype=config.dtype,
            quantization=getattr(config, "quantization", None),
            trust_remote_code=config.trust_remote_code,
        )
        if is_hub_id(config.model):
            found = _on_the_hub(found, source)
    if found.network is None:
        return found, None
    weights = found.facts.weight_bytes
    forecast = foretell(
        found.network,
        config,
        weights=found.facts.disk.weight_bytes if weights is None else weights,
        num_adapters=args.adapters,
        rank=args.adapter_rank,
        longest=found.facts.positions.longest,
        devices=devices,
    )
    return found, forecast


def _on_the_hub(found: Inspected, source: Source) -> Inspected:
    """Without the place where headers lay for a moment."""
    problem = found.facts.problem
    told = None if problem is None else problem.replace(str(source.path), source.name)
    return replace(found, facts=replace(found.facts, path=None, problem=told))


EXPORT = Command("say what a model is and what it needs, without loading it", add_arguments, run)

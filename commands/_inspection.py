"""How an inspection reads: lines for people, one object for programs.

Texts of a model's files are shown without control characters: they are somebody else's, and a terminal obeys them.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..engine.memory import shown

if TYPE_CHECKING:
    from ..engine.config import EngineConfig
    from ..engine.foretell import DeviceForecast, Forecast
    from ..models.facts import Disk, Inspection, Positions, QuantisedGroup, TokenizerFacts

WIDTH = 14  # of the names of facts
LONGEST = 300  # characters of one text of a model's files


def as_json(facts: Inspection, forecast: Forecast | None) -> dict[str, Any]:
    """`model` and `memory`; the keys are the fields of the records, and stay. Sizes are bytes."""
    return {
        "model": dataclasses.asdict(facts),
        "memory": None if forecast is None else dataclasses.asdict(forecast),
    }


def as_text(facts: Inspection, forecast: Forecast | None, config: EngineConfig) -> Iterator[str]:
    """The lines, without their ends."""
    yield clean(facts.name)
    for name, lines in _facts(facts):
        for at, line in enumerate(lines):
            yield f"  {name if at == 0 else '':<{WIDTH}}{clean(line)}"
    if forecast is None:
        yield "\nWhat it would need cannot be said without its network."
        return
    yield ""
    yield from _memory(facts, forecast)
    yield ""
    yield from _devices(forecast.devices)
    if facts.served:
        yield f"\n  {_command(config, forecast)}"


def clean(text: str) -> str:
    """Without control characters, and of bounded length."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable if len(printable) <= LONGEST else f"{printable[:LONGEST]} ..."


def _facts(facts: Inspection) -> Iterator[tuple[str, Sequence[str]]]:
    yield "served", ["yes" if facts.problem is None else f"no, because {facts.problem}"]
    yield "architecture", [_architecture(facts)]
    parameters = facts.network.num_parameters
    yield "parameters", ["unknown" if parameters is None else f"{parameters:,}"]
    yield "positions", [_positions(facts.positions)]
    yield "attention", list(_attention(facts)) or ["unknown"]
    yield "backends", [f"{b.name}: {'fits' if b.fits else b.reason}" for b in facts.backends] or ["unknown"]
    yield "quantisation", list(_quantisation(facts))
    yield "tokenizer", [_tokenizer(facts.tokenizer)]
    yield "licence", [_licence(facts)]
    yield "remote code", list(facts.remote_code) + _remote_code(facts)
    disk = facts.disk
    yield (
        "on disk",
        [f"{shown(disk.num_bytes)} in {_counted(disk.num_files, 'file')}, weights {shown(disk.weight_bytes)}"],
    )


def _architecture(facts: Inspection) -> str:
    net = facts.network
    sizes = {
        "layers": net.num_layers,
        "hidden": net.hidden_size,
        "intermediate": net.intermediate_size,
        "vocabulary": net.vocab_size,
    }
    told = [f"{name} {size}" for name, size in sizes.items() if size is not None]
    ends = {True: ["tied embeddings"], False: [], None: []}[net.tied_embeddings]
    return ", ".join([facts.architecture or "unknown", *told, *ends, *([net.dtype] if net.dtype else [])])


def _positions(positions: Positions) -> str:
    told = [positions.scheme if positions.rule is None else f"{positions.scheme}, {positions.rule}"]
    if positions.theta is not None:
        told.append(f"theta {positions.theta:g}")
    if positions.factor is not None:
        told.append(f"factor {positions.factor:g}")
    if positions.original is not None:
        told.append(f"trained on {positions.original}")
    told.append(f"{positions.usual or 'unknown'} usual, {positions.longest or 'unknown'} longest")
    return ", ".join(told)


def _attention(facts: Inspection) -> Iterator[str]:
    for each in facts.attention:
        sees = "all before it" if each.window is None else f"the last {each.window}"
        yield (
            f"layers {each.layers}: {each.heads} heads, {each.kv_heads} for keys and values, head size "
            f"{each.head_dim}, a token sees {sees}{'' if each.cache_dtype is None else f', cache {each.cache_dtype}'}"
        )


def _quantisation(facts: Inspection) -> Iterator[str]:
    found = facts.quantisation
    if found.on_load:
        yield f"rounded to {found.on_load} on load:"
    if not found.groups:
        settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
        yield f"{found.method} ({settings})" if settings else found.method
    yield from (_group(group) for group in found.groups)
    if found.kv_cache:
        yield f"KV cache: {found.kv_cache}"


def _group(group: QuantisedGroup) -> str:
    return f"{'; '.join(group.modules)}: {group.description} ({shown(group.num_bytes)})"


def _tokenizer(tokenizer: TokenizerFacts) -> str:
    if tokenizer.file is None:
        return "none"
    special = ", ".join(f"{role} {text!r}" for role, text in tokenizer.special_tokens.items())
    template = "a chat template" if tokenizer.chat_template else "no chat template"
    size = "of unknown size" if tokenizer.vocab_size is None else f"of {tokenizer.vocab_size}"
    told = [f"{tokenizer.kind or 'unnamed'} in {tokenizer.file}", f"vocabulary {size}", special, template]
    return ", ".join(filter(None, told))


def _licence(facts: Inspection) -> str:
    licence = facts.licence
    stated = f"{licence.stated} ({licence.stated_in})" if licence.stated else "not stated"
    return f"{stated}; {licence.file}: {licence.first_line!r}" if licence.file else f"{stated}; no licence file"


def _remote_code(facts: Inspection) -> list[str]:
    if facts.remote_code:
        return ["none of it runs without --trust-remote-code, and then only config and tokenizer"]
    return ["none"]


def _disk(disk: Disk) -> str:
    return f"{shown(disk.num_bytes)} in {_counted(disk.num_files, 'file')}, weights {shown(disk.weight_bytes)}"


def _memory(facts: Inspection, forecast: Forecast) -> Iterator[str]:
    yield f"Memory for {_counted(forecast.concurrency, 'request')} of {forecast.context} tokens"
    of_weights = "" if facts.weight_bytes is not None else " (as on disk)"
    yield f"  {'weights':<{WIDTH}}{shown(forecast.weights)}{of_weights}"
    yield f"  {'KV cache':<{WIDTH}}{shown(forecast.kv)} ({shown(forecast.kv_per_request)} a request)"
    adapters = f"{_counted(forecast.num_adapters, 'adapter')} of rank {forecast.adapter_rank} on every Linear"
    yield f"  {'adapters':<{WIDTH}}{shown(forecast.adapters)} ({adapters})"
    yield f"  {'working':<{WIDTH}}{shown(forecast.working)}"
    yield f"  {'in all':<{WIDTH}}{shown(forecast.total)}"
    longest = facts.positions.longest
    if longest is not None and forecast.context > longest:
        yield f"  {forecast.context} tokens are over the {longest} positions that the model knows"


def _devices(devices: Sequence[DeviceForecast]) -> Iterator[str]:
    width = max(len("DEVICE"), *(len(device.name) for device in devices))
    yield f"  {'DEVICE':<{width}}  {'MEMORY':>10}  {'USABLE':>10}  FITS  {'MOST REQUESTS':>13}  {'LONGEST REQUEST':>15}"
    for device in devices:
        yield (
            f"  {device.name:<{width}}  {shown(device.memory):>10}  {shown(max(0, device.usable)):>10}  "
            f"{'yes' if device.fits else 'no':<4}  {device.most_requests:>13}  {device.longest_request:>15}"
        )


def _command(config: EngineConfig, forecast: Forecast) -> str:
    flags = [f"--max-model-len {forecast.context}", f"--max-num-seqs {forecast.concurrency}"]
    if forecast.concurrency == config.max_num_batched_tokens:
        flags.append(f"--max-num-batched-tokens {forecast.concurrency}")
    flags.append(f"--kv-cache-memory {_mebibytes(forecast.kv)}")
    if forecast.num_adapters:
        flags += [f"--max-adapters {forecast.num_adapters}", f"--adapter-memory {_mebibytes(forecast.adapters)}"]
    return f"aril serve {shlex.quote(config.model)} {' '.join(flags)}"


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // (1 << 20))}MiB"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

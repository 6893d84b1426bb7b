"""What can be said of a model without loading its weights. Never an error: what is in the way is part of the answer.

The network is planned exactly as the loader plans it, on a device that holds no numbers. Where that fails, the sizes
come from the same family with plain weights, and where there is no family, from the config's own words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.errors import ArilError
from ..core.platform import Platform
from ..quant.base import Stored
from ..quant.detect import PLAIN, formats
from ..quant.on_load import ROUNDINGS
from .attention.base import AttentionSpec, refusals
from .base import Build, Decoder
from .checkpoint import open_checkpoint
from .facts import BackendFacts, Inspection, NetworkFacts, Positions, Quantisation, TokenizerFacts
from .loader import plan_model, spec_of
from .network_facts import attention_facts, kv_cache_words, num_parameters, positions_of, quantised_groups, weight_bytes
from .opened import Opened, open_model
from .papers import TEXTS, papers_of
from .parallel import OneRank
from .raw_config import RawConfig, raw_config_of
from .source import Source

NOWHERE = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Inspected:
    """The facts, and the network without weights for whoever wants to measure it; None when there is none."""

    facts: Inspection
    network: Decoder | None


@dataclass(frozen=True, slots=True)
class _Network:
    """A network without weights."""

    opened: Opened
    build: Build
    decoder: Decoder


def inspect_model(
    source: Source,
    platform: Platform,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    trust_remote_code: bool = False,
) -> Inspected:
    """Look at `source`; the arguments are those of the loader, and `platform` is whose backends are asked."""
    problem, network = None, None
    try:
        plan = plan_model(
            source, dtype=dtype, device=NOWHERE, quantization=quantization, trust_remote_code=trust_remote_code
        )
        network = _Network(plan.opened, plan.build, plan.decoder)
    except ArilError as error:
        problem = error.message.removeprefix(f"{source.path}: ")
    except Exception as error:  # a config can hold anything, and each family reads it in its own way
        problem = f"its config cannot be followed: {type(error).__name__}: {error}"
    raw = raw_config_of(source)
    sizes = network or _with_plain_weights(source, trust_remote_code)
    papers = papers_of(source, raw.metadata)
    backends = _backends(sizes.decoder.attention_specs, platform) if sizes else ()
    problem = problem or _no_backend(backends) or _no_tokenizer(papers.tokenizer)
    facts = Inspection(
        name=source.name,
        path=str(source.path),
        kind=source.kind,
        served=problem is None,
        problem=problem,
        architecture=sizes.opened.architecture if sizes else raw.architecture,
        model_type=raw.model_type,
        network=_sizes_of(sizes) if sizes else _sizes_stated(source, raw),
        positions=_positions(sizes, raw),
        attention=tuple(attention_facts(sizes.decoder.attention_specs)) if sizes else raw.attention(),
        backends=backends,
        quantisation=_quantisation(network, raw, quantization),
        tokenizer=papers.tokenizer,
        licence=papers.licence,
        remote_code=papers.remote_code,
        disk=papers.disk,
        weight_bytes=weight_bytes(network.build, network.decoder) if network else None,
    )
    return Inspected(facts, sizes.decoder if sizes else None)


def _with_plain_weights(source: Source, trust_remote_code: bool) -> _Network | None:
    """The same network, when only its weights cannot be read."""
    try:
        opened = open_model(source, trust_remote_code=trust_remote_code)
        num_positions = opened.family.rope(opened.config).usual
        build = Build(torch.bfloat16, NOWHERE, formats[PLAIN].from_checkpoint({}, {}), OneRank(), num_positions)
        with NOWHERE:
            return _Network(opened, build, opened.family.build(spec_of(opened, build.dtype, num_positions), build))
    except Exception:  # the first problem is the one to tell
        return None


def _sizes_of(network: _Network) -> NetworkFacts:
    spec, config = network.decoder.spec, network.opened.config
    return NetworkFacts(
        spec.num_layers,
        spec.hidden_size,
        getattr(config, "intermediate_size", None),
        spec.vocab_size,
        getattr(config, "tie_word_embeddings", None),
        str(spec.dtype).removeprefix("torch."),
        num_parameters(network.build),
    )


def _sizes_stated(source: Source, raw: RawConfig) -> NetworkFacts:
    return NetworkFacts(
        raw.size("num_layers"),
        raw.size("hidden_size"),
        raw.size("intermediate_size"),
        raw.size("vocab_size"),
        raw.switch("tie_word_embeddings"),
        raw.text("dtype") or raw.text("torch_dtype"),
        _numbers_stored(source, raw),
    )


def _numbers_stored(source: Source, raw: RawConfig) -> int | None:
    """Parameters by the header alone, where one stored number is one parameter: in plain files, and in a GGUF's."""
    if raw.quantisation.method not in (PLAIN, "gguf"):
        return None
    try:
        stored = _gguf_header(source.path) if source.kind == "gguf" else open_checkpoint(source.path).stored
    except ArilError:
        return None
    return sum(math.prod(tensor.shape) for tensor in stored.values())


def _gguf_header(path: Path) -> Mapping[str, Stored]:
    from .gguf_file import GgufFile

    return {name: Stored(tensor.shape, tensor.kind.name) for name, tensor in GgufFile(path).tensors.items()}


def _positions(network: _Network | None, raw: RawConfig) -> Positions:
    if network is None:
        return raw.positions()
    return positions_of(network.opened.family.rope(network.opened.config))


def _backends(specs: Sequence[AttentionSpec], platform: Platform) -> tuple[BackendFacts, ...]:
    return tuple(BackendFacts(name, reason is None, reason) for name, reason in refusals(specs, platform).items())


def _no_backend(backends: Sequence[BackendFacts]) -> str | None:
    if not backends or any(each.fits for each in backends):
        return None
    return f"no attention backend fits: {'; '.join(f'{each.name}: {each.reason}' for each in backends)}"


def _no_tokenizer(tokenizer: TokenizerFacts) -> str | None:
    return None if tokenizer.file else f"there is no tokenizer: looked for {', '.join(TEXTS)}"


def _quantisation(network: _Network | None, raw: RawConfig, asked: str | None) -> Quantisation:
    found = raw.quantisation
    if network is None:
        return found
    groups = tuple(quantised_groups(network.build))
    on_load = asked if asked in ROUNDINGS and asked != found.method else None  # what is fp8 already is not rounded
    return replace(found, groups=groups, kv_cache=kv_cache_words(network.build), on_load=on_load)

"""What `aril inspect` finds out about a model: plain records, whose field names are the keys of its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Licence:
    """What the model says of its terms. Nothing here is advice; the files are what counts."""

    stated: str | None = None  # the field `license`
    stated_in: str | None = None  # config.json, README.md or the GGUF's metadata
    file: str | None = None
    first_line: str | None = None  # of that file


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """How text becomes tokens."""

    kind: str | None = None  # the class that tokenizer_config.json names, or the GGUF's tokenizer.ggml.model
    file: str | None = None  # what it is read from; None = there is none
    vocab_size: int | None = None  # special tokens included
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # role (bos, eos, ...) -> text
    chat_template: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    """What lies on disk."""

    num_files: int
    num_bytes: int
    weight_files: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Positions:
    """How the network knows where a token stands, and how far it goes."""

    scheme: str  # RoPE, or what the config seems to say of another
    rule: str | None = None  # scaling: default, linear, dynamic, llama3, yarn, longrope
    theta: float | None = None
    factor: float | None = None  # of the scaling
    original: int | None = None  # positions that the base was trained on before scaling
    usual: int | None = None  # positions when nobody asks for a length
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Layers whose attention is alike."""

    layers: str  # 0-29
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # positions that a token sees; None = all before it
    cache_dtype: str | None


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Whether an attention backend serves all layers on this machine."""

    name: str
    fits: bool
    reason: str | None  # why not


@dataclass(frozen=True, slots=True)
class QuantisedGroup:
    """Matrices that are stored alike."""

    description: str  # GPTQ 4 bit, group 64, symmetric, act order
    modules: tuple[str, ...]  # in words: q,k,v,o of layers 0-29
    num_matrices: int
    num_parameters: int
    num_bytes: int  # as the matrices will lie in memory


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How the weights are stored."""

    method: str  # as the checkpoint names it; none = plain weights
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)  # as its config states them
    groups: tuple[QuantisedGroup, ...] = ()  # empty when Aril does not read the format
    kv_cache: str | None = None  # what the checkpoint asks of the KV cache
    on_load: str | None = None  # what plain weights would be rounded to, as was asked


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Sizes of the network."""

    num_layers: int | None
    hidden_size: int | None
    intermediate_size: int | None
    vocab_size: int | None
    tied_embeddings: bool | None
    dtype: str | None  # of activations and KV cache
    num_parameters: int | None  # None = the checkpoint is packed in a way that does not tell


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that is known of a model without its weights. What is not known is None or empty."""

    name: str
    path: str | None  # None = on the hub
    kind: str  # folder or gguf
    served: bool
    problem: str | None  # why not
    architecture: str | None
    model_type: str | None
    network: NetworkFacts
    positions: Positions
    attention: tuple[AttentionFacts, ...]
    backends: tuple[BackendFacts, ...]
    quantisation: Quantisation
    tokenizer: TokenizerFacts
    licence: Licence
    remote_code: tuple[
        str, ...
    ]  # "config.json: AutoConfig = configuration_x.XConfig"; runs with --trust-remote-code only
    disk: Disk
    weight_bytes: int | None  # of weights and tables in memory

"""Llama 1 to 3.x and Mistral: pre-norm blocks of rotary attention and a gated MLP, biases where the config says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core.errors import Unsupported
from ..attention.base import AttentionSpec
from ..base import Block, Build, Decoder, ModelSpec
from ..batch import ForwardBatch
from ..layers.attention import Attention
from ..layers.linear import Linear
from ..layers.mlp import GatedMLP
from ..layers.norm import RMSNorm
from ..layers.rotary import RopeSpec, Rotary

MOST_LAYERS = 1000  # the deepest network that anyone has published has fewer


@dataclass(frozen=True, slots=True)
class Heads:
    """How a layer's q, k and v are divided."""

    num: int
    num_kv: int
    size: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Outputs of q, k and v."""
        return self.num * self.size, self.num_kv * self.size, self.num_kv * self.size


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """q, k, v in one product, optional norms on each head's q and k, rotation, attention, output projection."""

    heads: Heads
    qkv: Linear
    out: Linear
    rotary: Rotary
    attention: Attention
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """x[T, hidden] -> [T, hidden]."""
        fused = self.qkv(x, batch).view(len(x), -1, self.heads.size)  # [T, heads + 2 kv_heads, size]
        q, k, v = fused.split_with_sizes((self.heads.num, self.heads.num_kv, self.heads.num_kv), dim=1)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        self.rotary(q, k, batch.positions)
        return self.out(self.attention(q, k, v, batch).flatten(1), batch)


@dataclass(frozen=True, slots=True)
class LlamaBlock:
    """Norm, attention, norm, MLP, each added to the residual by the norm behind it."""

    input_norm: RMSNorm
    attention: SelfAttention
    post_norm: RMSNorm
    mlp: GatedMLP

    def __call__(self, x: Tensor, residual: Tensor, batch: ForwardBatch) -> Tensor:
        x = self.attention(self.input_norm.add_(x, residual), batch)
        return self.mlp(self.post_norm.add_(x, residual), batch)


class Llama:
    """The family; others override what differs."""

    architectures: tuple[str, ...] = ("LlamaForCausalLM", "MistralForCausalLM")

    def check(self, config: Any) -> None:
        if config.hidden_act != "silu":
            raise Unsupported(f"hidden_act {config.hidden_act!r}; this family has silu", param="model")
        if config.num_hidden_layers > MOST_LAYERS:
            raise Unsupported(
                f"num_hidden_layers is {config.num_hidden_layers}; networks of {MOST_LAYERS} at most are built",
                param="model",
            )

    def rope(self, config: Any) -> RopeSpec:
        return RopeSpec(config.rope_parameters, self.heads(config).size, config.max_position_embeddings)

    def build(self, spec: ModelSpec, build: Build) -> Decoder:
        config = spec.config
        rotary = build.rotary(self.rope(config))
        blocks = [self.block(config, layer, rotary, build) for layer in range(config.num_hidden_layers)]
        norm = build.norm("model.norm", config.hidden_size, config.rms_norm_eps)
        size = (config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            head = build.head("model.embed_tokens", *size)
            return Decoder(spec, build, embed=head.rows, blocks=blocks, norm=norm, head=head)
        embedding = build.embedding("model.embed_tokens", *size)
        head = build.head("lm_head", *size)
        return Decoder(spec, build, embed=embedding, blocks=blocks, norm=norm, head=head)

    def heads(self, config: Any) -> Heads:
        """How q, k and v are divided."""
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Heads(config.num_attention_heads, config.num_key_value_heads, size)

    def window(self, config: Any, layer: int) -> int | None:
        """How far back this layer sees; None = to the start."""
        return getattr(config, "sliding_window", None)

    def biases(self, config: Any) -> tuple[bool, bool, bool]:
        """Whether qkv, the output projection and the MLP have biases."""
        attention = getattr(config, "attention_bias", False)
        return attention, attention, getattr(config, "mlp_bias", False)

    def block(self, config: Any, layer: int, rotary: Rotary, build: Build) -> Block:
        """Layer number `layer`."""
        path, eps = f"model.layers.{layer}", config.rms_norm_eps
        return LlamaBlock(
            build.norm(f"{path}.input_layernorm", config.hidden_size, eps),
            self.self_attention(config, layer, rotary, build),
            build.norm(f"{path}.post_attention_layernorm", config.hidden_size, eps),
            self.mlp(config, layer, build),
        )

    def self_attention(self, config: Any, layer: int, rotary: Rotary, build: Build) -> SelfAttention:
        """The layer's attention."""
        path, heads = f"model.layers.{layer}.self_attn", self.heads(config)
        qkv_bias, out_bias, _ = self.biases(config)
        names = [f"{path}.{name}_proj" for name in "qkv"]
        out = [(f"{path}.o_proj", config.hidden_size)]
        q_norm, k_norm = self.head_norms(config, path, build)
        return SelfAttention(
            heads,
            build.linear(
                f"layers.{layer}.qkv", config.hidden_size, list(zip(names, heads.sizes, strict=True)), bias=qkv_bias
            ),
            build.linear(f"layers.{layer}.o", heads.sizes[0], out, bias=out_bias, splits_inputs=True),
            rotary,
            build.attention(path, self.attention_spec(config, layer, build)),
            q_norm,
            k_norm,
        )

    def attention_spec(self, config: Any, layer: int, build: Build) -> AttentionSpec:
        """What the layer asks of attention."""
        heads = self.heads(config)
        return AttentionSpec(
            heads.num,
            heads.num_kv,
            heads.size,
            scale=heads.size**-0.5,
            cache_dtype=build.dtype,
            window=self.window(config, layer),
        )

    def head_norms(self, config: Any, path: str, build: Build) -> tuple[RMSNorm | None, RMSNorm | None]:
        """Norms of each head's q and k."""
        return None, None

    def mlp(self, config: Any, layer: int, build: Build) -> GatedMLP:
        """The layer's MLP."""
        path, inner = f"model.layers.{layer}.mlp", config.intermediate_size
        bias = self.biases(config)[2]
        gate_up = [(f"{path}.gate_proj", inner), (f"{path}.up_proj", inner)]
        down = [(f"{path}.down_proj", config.hidden_size)]
        return GatedMLP(
            build.linear(f"layers.{layer}.gate_up", config.hidden_size, gate_up, bias=bias),
            build.linear(f"layers.{layer}.down", inner, down, bias=bias, splits_inputs=True),
        )


EXPORT = Llama()

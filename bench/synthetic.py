"""Write a checkpoint in a quantised format: a random Llama of 1.1B parameters, or a model of 16 bits rounded to it.

    python -m aril.bench.synthetic --format gptq-int4 --out /tmp/1b-gptq                 (half a minute; 0.7 GB)
    python -m aril.bench.synthetic --model demo --format all --group-size 64 --out DIR    (a folder for each)

The random shape is TinyLlama's. Tensors are made, rounded and written one after the other, so that little memory is
needed; the same shape and seed give the same numbers in every format.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.source import locate
from .encodings import ENCODINGS, Encoding, encoding
from .shards import ShardWriter

RANDOM = "1.1b"
SPREAD = 0.02  # standard deviation of the random weights
LINEAR = re.compile(r"^model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight$")
LLAMA = {  # TinyLlama-1.1B
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class Base:
    """A model of 16 bits: its config.json, its tensors in order, and who writes its tokenizer into a folder."""

    config: dict[str, Any]
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    save_tokenizer: Callable[[Path], object]


def write(base: Base, form: Encoding, folder: Path) -> Path:
    """`base` in one format; linears of the layers are quantised, everything else stays bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    with ShardWriter(folder) as writer:
        for name, tensor in base.tensors():
            writer.add(_encoded(name, tensor, form))
    config = base.config if form.config is None else {**base.config, "quantization_config": form.config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    base.save_tokenizer(folder)
    return folder


def _encoded(name: str, tensor: Tensor, form: Encoding) -> dict[str, Tensor]:
    if not LINEAR.match(name):
        return {name: tensor.to(torch.bfloat16)}
    path = name.removesuffix(".weight")
    form.check(path, tuple(tensor.shape))
    return {f"{path}.{suffix}": made for suffix, made in form.tensors(tensor.float()).items()}


def random_llama(seed: int = 0, **changes: Any) -> Base:
    """A Llama of random numbers; `changes` are fields of its config.json."""
    config = {**LLAMA, **changes}
    return Base(config, lambda: _random_tensors(config, seed), lambda folder: _bytes_tokenizer(folder, config))


def _random_tensors(config: dict[str, Any], seed: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for name, shape in _shapes(config):
        values = torch.empty(shape, dtype=torch.bfloat16)
        yield name, values.normal_(std=SPREAD, generator=generator) if len(shape) > 1 else values.fill_(1.0)


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    linears = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for path, shape in linears.items():
            yield f"model.layers.{layer}.{path}.weight", shape
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{norm}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _bytes_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Every byte is a token; the other ids have a text too, but no text encodes to them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>"]
    known = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"<{at}>" for at in range(len(known), config["vocab_size"])]
    raw = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(known)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    names = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=raw, **names).save_pretrained(folder)


def loaded(model: str) -> Base:
    """A model of 16 bits that transformers reads; a GGUF file is unpacked."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = locate(model)
    where: dict[str, Any] = {"pretrained_model_name_or_path": source.path}
    unpacked: dict[str, Any] = {}
    if source.kind == "gguf":
        where = {"pretrained_model_name_or_path": source.path.parent, "gguf_file": source.path.name}
        unpacked = {"quantization_config": GgufConfig(dequantize=True)}
    network = AutoModelForCausalLM.from_pretrained(**where, **unpacked, dtype=torch.float32)
    config = {k: v for k, v in network.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    config |= {"dtype": "bfloat16", "torch_dtype": "bfloat16", **({"rope_theta": theta} if theta else {})}
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    tensors = {name: tensor for name, tensor in network.state_dict().items() if name not in tied}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    return Base(config, lambda: iter(tensors.items()), tokenizer.save_pretrained)


def main() -> int:
    """Write one format, or a folder for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=RANDOM, help=f"{RANDOM} (random), demo, a folder or a .gguf file")
    parser.add_argument("--format", required=True, help=f"{', '.join(ENCODINGS)}; several with commas; or all")
    parser.add_argument("--group-size", type=int, default=128, help="of the formats with groups (128)")
    parser.add_argument("--layers", type=int, help=f"layers of {RANDOM} (22)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="of several formats each has a folder in it")
    args = parser.parse_args()
    names = list(ENCODINGS) if args.format == "all" else args.format.split(",")
    forms = {name: encoding(name, args.group_size) for name in names}
    layers = {} if args.layers is None else {"num_hidden_layers": args.layers}
    base = random_llama(args.seed, **layers) if args.model == RANDOM else loaded(args.model)
    for name, form in forms.items():
        began = time.perf_counter()
        folder = write(base, form, args.out if len(forms) == 1 else args.out / name)
        print(f"{folder}: {name}, {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A tiny real model that says what it was made to say, token by token, whatever is asked.

Its layers add nothing, so that each token alone decides which follows. A script is cut into tokens of its own, none of
which stands in another; the first is `CUE % name`, which the chat template writes last when its variable `say` asks for
it, and which may end with what a real template would end with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import AutoConfig, AutoModelForCausalLM

from builders.models import CHAT_TEMPLATE, END, START, make_tokenizer

CUE = "<|say %s"
TOOLS = (
    "{%- if tools -%}{{ '<tools>' }}{%- for tool in tools -%}{{ tool | tojson }}{%- endfor -%}"
    "{{ '</tools>' }}{%- endif -%}"
)
CALLS = (
    "{%- macro calls(message) -%}{%- for call in message.tool_calls or [] -%}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor -%}{%- endmacro -%}"
)
SAY = "{%- if say -%}{{ '<|say ' + say }}{%- endif -%}"
TEACHES_NONE = CHAT_TEMPLATE + SAY
TEACHES_HERMES = (
    CALLS + TOOLS + CHAT_TEMPLATE.replace("message['content']", "message['content'] + calls(message)") + SAY
)
WIDTH = 512
LONGEST = 6  # characters of a token


def make_parrot(
    folder: Path, scripts: Mapping[str, str], *, special: tuple[str, ...] = (), template: str = TEACHES_NONE
) -> Path:
    """Write the model into `folder`. Those of `special` are one special token each, in one script at most."""
    tokenizer = make_tokenizer(vocab_size=512)
    tokenizer.chat_template = template
    used = set(tokenizer.get_vocab())
    chains = {name: [CUE % name, *_cut(text, special, used), END] for name, text in scripts.items()}
    words = [word for chain in chains.values() for word in chain[1:-1] if word not in special]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    marks = [*special, *(chain[0] for chain in chains.values())]
    tokenizer.add_special_tokens({"additional_special_tokens": [*marks, START]})
    tokenizer.save_pretrained(folder)
    _write_model(folder, [tokenizer.convert_tokens_to_ids(chain) for chain in chains.values()], len(tokenizer))
    return folder


def _cut(text: str, special: tuple[str, ...], used: set[str]) -> Iterator[str]:
    """Pieces of `text` that no script has used."""
    while text:
        mark = next((mark for mark in special if text.startswith(mark)), None)
        if mark is None:
            border = min((at for mark in special if (at := text.find(mark)) > 0), default=len(text))
            lengths = [length for length in range(1, border + 1) if text[:length] not in used]
            mark = text[: next((n for n in lengths if n >= min(LONGEST, border)), lengths[-1] if lengths else border)]
        assert mark not in used, f"{mark!r} stands in two places"
        used.add(mark)
        yield mark
        text = text[len(mark) :]


def _write_model(folder: Path, chains: list[list[int]], vocab_size: int) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=vocab_size, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        seen = torch.randn(vocab_size, WIDTH)
        model.model.embed_tokens.weight.copy_(seen)
        model.lm_head.weight.zero_()
        for chain in chains:
            for token, following in pairwise(chain):
                model.lm_head.weight[following] += seen[token]
    model.save_pretrained(folder)

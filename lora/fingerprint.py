"""Which base an adapter was made for, and which one is here: compared by name, as people and tools write names.

One model goes by many: `Qwen/Qwen2.5-7B-Instruct`, `unsloth/qwen2.5-7b-instruct-unsloth-bnb-4bit`,
`qwen2.5-7b-instruct-q4_k_m.gguf`. What a copy's precision adds is taken off, and what is left is compared letter by
letter and number by number. A path of somebody's machine says nothing of the model, unless it agrees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NOISE = re.compile(  # words about precision, tools and packaging
    r"(?<![a-z0-9])(?:"
    r"i?q\d(?:_[a-z0-9]+)*|\d+[-_ ]?bits?|u?int\d+|w\d+a\d+(?:kv\d+)?|nf4|(?:nv|mx)?(?:f|bf|fp)\d+(?:_?e\dm\d)?|"
    r"gs?\d+|\d+g|"
    r"unsloth|bnb|gguf|ggml|gptq|autogptq|awq|autoawq|exl[23]|mlx|hqq|aqlm|eetq|quip|marlin|torchao|autoround|"
    r"compressed|tensors|quantized|quantised|quant|dynamic|static|imatrix|ud|hf|sym|asym"
    r")(?![a-z0-9])"
)
MAKERS = re.compile(r"^meta[-_ ](?=(?:code)?llama)")  # Meta-Llama-3.1-8B is Llama-3.1-8B since
WORDS = re.compile(r"[a-z]+|\d+")
SIZE = re.compile(r"(?<![a-z0-9])(?:\d+x)?\d+(?:[._]\d+)?[bm](?![a-z0-9])")  # 7b, 1.5B, 8x7b, 135M
CACHED = re.compile(r"(?:^|[/\\])models--([^/\\]+?)--([^/\\]+)")  # a place in the hub's cache
ADDRESS = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co|modelscope\.cn/models)/([^/]+/[^/?#]+)")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
NAMES = ("name", "names")  # what a base is called; the rest of a fingerprint is what it is
# First parts of `a/b` that are folders of training scripts rather than owners on a hub.
FOLDERS = {
    "models", "model", "output", "outputs", "out", "checkpoints", "checkpoint", "ckpt", "ckpts", "data", "results",
    "runs", "saves", "saved", "weights", "base", "base_model", "base_models", "pretrained", "tmp", "work", "workspace",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The served base. `facts` are sizes of the network and a digest of its config, as a revision records them."""

    name: str  # what it is called here
    names: tuple[str, ...] = ()  # what else it is known by: its source, its own files
    facts: Mapping[str, int | str] = field(default_factory=dict)

    def said(self) -> dict[str, object]:
        """All of it, for a row."""
        return {"name": self.name, "names": list(self.names), **self.facts}


def contradiction(trained_on: str | None, base: Fingerprint) -> str | None:
    """Why an adapter for `trained_on` is none for `base`: both have names that tell, and no two are of one model."""
    if trained_on is None or not names_a_model(trained_on) or is_known(trained_on, base):
        return None
    telling = [name for name in base.names if names_a_model(name) or _has_size(_last_part(name))]
    if not telling:
        return None
    ours = ", alias ".join(repr(name) for name in dict.fromkeys((base.name, *telling)))
    return f"base_model_name_or_path: the adapter was trained on {trained_on[:200]!r}, and the base here is {ours}"


def remark(trained_on: str | None, base: Fingerprint) -> str | None:
    """What a person may want to know of names that neither agree nor contradict each other."""
    if trained_on is None:
        return "the adapter does not say which base it was trained on: accepted because every shape matches"
    if is_known(trained_on, base):
        return None
    return f"trained on {trained_on[:200]}, served on {base.name}: accepted because every shape matches"


def difference(then: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Why what was checked on the base `then` says nothing of the base `now`; both are fingerprints as `said` tells
    them. None where they are alike but for their names, and where nothing was recorded."""
    others = [fact.replace("_", " ") for fact in now if fact not in NAMES and then.get(fact) != now[fact]]
    if not then or not others:
        return None
    return (
        f"it was checked on the base {str(then.get('name'))[:200]!r}, and the base here is {now['name']!r}, with "
        f"another {', '.join(others)}: serve that base, or have it checked on this one (`aril adapters recheck`)"
    )


def is_known(name: str, base: Fingerprint) -> bool:
    """Whether `name` is one of the base's."""
    return model_of(name) in {model_of(known) for known in (base.name, *base.names)}


def names_a_model(name: str) -> bool:
    """Whether `name` tells which model it means: an id of a hub, its address or place in a cache, or a bare name with a
    size in it. Other paths may have been called anything."""
    if CACHED.search(name) or ADDRESS.match(name):
        return True
    if HUB_ID.fullmatch(name):
        return name.partition("/")[0].lower() not in FOLDERS
    return name == _last_part(name) and _has_size(name)


def model_of(name: str) -> str:
    """What is left of `name` without its owner or folder, and without words about precision and packaging."""
    found = CACHED.search(name)
    last = found[2] if found else _last_part(name)
    text = last.lower().removesuffix(".gguf").replace("___", ".")
    text = NOISE.sub("", MAKERS.sub("", text))
    return "-".join(WORDS.findall(text)) or last.lower()


def _last_part(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def _has_size(name: str) -> bool:
    return SIZE.search(name.lower()) is not None

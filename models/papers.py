"""The papers of a model: licence, tokenizer, remote code, bytes on disk. Read as text; nothing here runs or raises.

A paper that cannot be read is as good as none: what it would have said stays unknown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.cards import front_matter
from ..core.errors import ArilError
from .facts import Disk, Licence, TokenizerFacts
from .source import Source
from .weight_files import STEMS, listed_files

ROLES = ("bos", "eos", "pad", "unk")
LICENCE_FILES = ("LICENSE*", "LICENCE*", "license*", "licence*", "COPYING*")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
TEXTS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)  # what a tokenizer is read from


@dataclass(frozen=True, slots=True)
class Papers:
    """All of them."""

    licence: Licence
    tokenizer: TokenizerFacts
    remote_code: tuple[str, ...]
    disk: Disk


def papers_of(source: Source, metadata: Mapping[str, Any] | None = None) -> Papers:
    """The papers of a folder, or of a GGUF file whose `metadata` has been read."""
    if source.kind == "gguf":
        return _of_gguf(source.path, metadata or {})
    folder = source.path
    config = read_object(folder / "config.json")
    beside = read_object(folder / "tokenizer_config.json")
    return Papers(
        _licence(folder, config),
        _tokenizer(folder, beside),
        (*_auto_map("config.json", config), *_auto_map("tokenizer_config.json", beside)),
        _disk((path for path in folder.rglob("*") if path.is_file()), _weight_files(folder)),
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_gguf(path: Path, meta: Mapping[str, Any]) -> Papers:
    tokens = _list(meta.get("tokenizer.ggml.tokens"))
    ids = {role: meta.get(f"tokenizer.ggml.{name}_token_id") for role, name in _gguf_roles()}
    special = {role: str(tokens[at]) for role, at in ids.items() if isinstance(at, int) and 0 <= at < len(tokens)}
    tokenizer = TokenizerFacts(
        _text(meta.get("tokenizer.ggml.model")),
        path.name if tokens else None,
        len(tokens) or None,
        special,
        bool(meta.get("tokenizer.chat_template")),
    )
    stated = _text(meta.get("general.license")) or _text(meta.get("general.license.name"))
    beside = _licence(path.parent, {}) if (path.parent / "README.md").is_file() else Licence()
    licence = Licence(stated, "GGUF metadata" if stated else None, beside.file, beside.first_line)
    return Papers(licence if stated else beside, tokenizer, (), _disk([path], [path]))


def _gguf_roles() -> Iterator[tuple[str, str]]:
    yield from (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"), ("eot", "eot"))


def _licence(folder: Path, config: Mapping[str, Any]) -> Licence:
    stated, where = _text(config.get("license")), "config.json"
    if stated is None:
        stated, where = _on_card(folder, "license"), "README.md"
    named = "other" if stated == "other" else None
    if named:
        stated = _on_card(folder, "license_name") or stated
    file = next((path for pattern in LICENCE_FILES for path in sorted(folder.glob(pattern)) if path.is_file()), None)
    first = None if file is None else _first_line(file)
    return Licence(stated, where if stated else None, None if file is None else file.name, first)


def _on_card(folder: Path, key: str) -> str | None:
    return next(iter(front_matter(folder / "README.md").get(key, [])), None)


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> TokenizerFacts:
    file = next((name for name in TEXTS if (folder / name).is_file()), None)
    whole = read_object(folder / "tokenizer.json")
    added = {
        str(entry.get("content"))
        for entry in [*_list(whole.get("added_tokens")), *_mapping(config.get("added_tokens_decoder")).values()]
        if isinstance(entry, dict)
    }
    vocab = _vocabulary(whole) or set(read_object(folder / "vocab.json"))
    has_template = bool(config.get("chat_template")) or any((folder / name).exists() for name in TEMPLATES)
    return TokenizerFacts(
        _text(config.get("tokenizer_class")),
        file,
        len(vocab | added) if vocab else None,
        dict(_special(config, read_object(folder / "special_tokens_map.json"))),
        has_template,
    )


def _vocabulary(tokenizer: Mapping[str, Any]) -> set[str]:
    """The tokens of tokenizer.json: an object of text -> id, or (Unigram) a list of [text, score]."""
    vocab = _mapping(tokenizer.get("model")).get("vocab")
    if isinstance(vocab, dict):
        return set(vocab)
    return {str(entry[0]) for entry in _list(vocab) if isinstance(entry, list) and entry}


def _special(*configs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for role in ROLES:
        for config in configs:
            token = config.get(f"{role}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                yield role, text
                break


def _auto_map(file: str, config: Mapping[str, Any]) -> Iterator[str]:
    for name, target in _mapping(config.get("auto_map")).items():
        targets = [text for text in (target if isinstance(target, list) else [target]) if isinstance(text, str)]
        yield f"{file}: {name} = {' or '.join(targets)}"


def _disk(paths: Iterable[Path], weights: Collection[Path]) -> Disk:
    sizes = {path: path.stat().st_size for path in paths}
    of_weights = [size for path, size in sizes.items() if path in weights]
    return Disk(len(sizes), sum(sizes.values()), len(of_weights), sum(of_weights))


def _weight_files(folder: Path) -> list[Path]:
    """Those that would be read; where that cannot be said, all that look like weights."""
    for ending in STEMS:
        try:
            listed = listed_files(folder, ending)
        except ArilError:
            listed = None
        if listed:
            return list(listed.paths)
    return [path for path in folder.iterdir() if path.suffix in STEMS]


def _first_line(path: Path) -> str | None:
    return next((line.strip() for line in _lines(path) if line.strip()), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

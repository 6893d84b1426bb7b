"""The base's tokenizer and chat template. The only file of the engine that knows transformers.

Encoding and rendering are safe on any thread; they touch no state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ..core.errors import InvalidRequest, Unsupported
from ..core.log import event, get_logger
from ..models.source import Source, default_cache
from .detokenizer import Detokenizer
from .params import SamplingParams
from .pieces import Pieces

log = get_logger(__name__)


class Text:
    """Text to tokens and back, and conversations to prompts."""

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        """`tokenizer`: a transformers tokenizer with a `tokenizers` backend. Raises Unsupported for any other."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise Unsupported(f"{type(tokenizer).__name__} is not one of the `tokenizers` library")
        backend.no_truncation()  # a limit in tokenizer.json would cut prompts without a word
        backend.no_padding()
        self._tokenizer = tokenizer
        self._backend = backend
        self.chat_template = chat_template or tokenizer.chat_template
        self.vocab_size = len(tokenizer)
        self.eos_token_ids = frozenset([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._pieces = Pieces(decoder, backend.id_to_token, frozenset(tokenizer.all_special_ids))

    @classmethod
    def load(cls, source: Source, *, chat_template: str | None = None, trust_remote_code: bool = False) -> Text:
        """The tokenizer of a model folder or GGUF file; `chat_template` is a file, or a template itself."""
        from transformers import AutoTokenizer

        folder = _converted(source.path) if source.kind == "gguf" else source.path
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise Unsupported(f"no tokenizer can be read from {source.path}: {error}", param="model") from error
        return cls(tokenizer, chat_template=None if chat_template is None else _read_template(chat_template))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all of `ids` at once."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **variables: Any,
    ) -> list[int]:
        """The prompt that the chat template makes of a conversation; `variables` reach the template by name."""
        template = chat_template or self.chat_template
        if template is None:
            raise InvalidRequest(
                "this model has no chat template: use completions, or start the server with --chat-template FILE",
                param="messages",
                code="no_chat_template",
            )
        if add_generation_prompt and continue_final_message:
            raise InvalidRequest(
                "continue_final_message goes on with the last message: it needs add_generation_prompt=false",
                param="continue_final_message",
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                documents=None if documents is None else [dict(document) for document in documents],
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise InvalidRequest(f"the chat template refuses this conversation: {error}", param="messages") from error
        return self.encode(text, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; a part of a character, perhaps."""
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """`token_bytes` for display: bytes that are no whole character come out as U+FFFD."""
        return self._pieces[token_id].decode("utf-8", "replace")

    def detokenizer(self, params: SamplingParams, prompt: Sequence[int]) -> Detokenizer:
        """Turns the tokens that follow `prompt` into text as they come."""
        return Detokenizer(self._pieces, params, prompt)


def _read_template(named: str) -> str:
    if "{" in named:  # a template itself, as vLLM takes it too
        return named
    if not Path(named).is_file():
        raise InvalidRequest(f"--chat-template {named}: there is no such file", param="chat_template")
    return Path(named).read_text(encoding="utf-8")


def _converted(file: Path) -> Path:
    """The folder of a GGUF's tokenizer. Converting takes seconds, so it is kept, by what the file is."""
    seen = file.stat()
    key = hashlib.sha256(f"{file.resolve()}|{seen.st_size}|{seen.st_mtime_ns}".encode()).hexdigest()[:24]
    folder = default_cache() / "tokenizers" / key
    if not folder.is_dir():
        log.info(event("tokenizer_converted", file=file, folder=folder))
        _appear_at(folder, lambda new: _convert(file, new))
    return folder


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def _appear_at(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder that others see whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        fill(new)
        os.rename(new, folder)
    except OSError:
        if not folder.is_dir():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)

"""The base's tokenizer and chat template. The only file of the engine that knows transformers, and asks it once.

Encoding and rendering are safe on any thread; they touch no state.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..core.errors import InvalidRequest, Unsupported
from ..models.remembered import is_remembered, remembered, state_of
from ..models.source import Source
from .detokenizer import Detokenizer
from .grammar.base import Vocabulary
from .infill import infill_of
from .longest import Longest, longest_token
from .params import SamplingParams
from .pieces import Pieces
from .templates import Renderer, chosen, read_template, render

LONG = 4096  # characters, or tokens; so many may take long to encode, or to decode
KIND = "tokenizer"  # of what is remembered
RENDERER = "transformers.utils.chat_template_utils"  # takes half a second to import, once
PROBE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "a_tool_of_no_template",
        "description": "?",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOLD_IN = (".json", ".jinja", ".model", ".txt")  # files of a model folder that a tokenizer may be made of


class Text:
    """Text to tokens and back, and conversations to prompts."""

    def __init__(self, backend: Tokenizer, facts: Mapping[str, Any], *, chat_template: str | None = None) -> None:
        """`facts`: what `facts_of` says beside the tokenizer itself."""
        backend.no_truncation()  # a limit in tokenizer.json would cut prompts without a word
        backend.no_padding()
        self._backend = backend
        self._special_tokens: dict[str, str] = facts["special_tokens"]
        self.chat_template: str | None = chat_template or chosen(facts["chat_template"], None, with_tools=False)
        self._templates: str | dict[str, str] | None = chat_template or facts["chat_template"]
        self._shows_tools: bool | None = None  # until it has been tried out
        self.vocab_size: int = facts["vocab_size"]
        self.eos_token_ids: frozenset[int] = frozenset(facts["eos_token_ids"])
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self.infill = infill_of(backend.token_to_id)  # None: the model has no tokens for it
        self._pieces = Pieces(decoder, backend.id_to_token, frozenset(facts["special_ids"]))

    @classmethod
    def load(cls, source: Source, *, chat_template: str | None = None, trust_remote_code: bool = False) -> Text:
        """The tokenizer of a model folder or GGUF file; `chat_template` is a file, or a template itself."""
        template = None if chat_template is None else read_template(chat_template)
        if trust_remote_code:  # its code may have changed
            found = facts_of(read_tokenizer(source, trust_remote_code=True))
        else:
            found = remembered(KIND, state_of(_files(source)), lambda: facts_of(read_tokenizer(source)))
        return cls(Tokenizer.from_str(found["tokenizer"]), found, chat_template=template)

    @classmethod
    def heard(cls, told: Mapping[str, Any]) -> Text:
        """The same as the one that said `told`, perhaps in another process."""
        return cls(Tokenizer.from_str(told["tokenizer"]), told)

    def told(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "tokenizer": self._backend.to_str(),
            "chat_template": self._templates,
            "special_tokens": self._special_tokens,
            "special_ids": sorted(self._pieces.special),
            "eos_token_ids": sorted(self.eos_token_ids),
            "vocab_size": self.vocab_size,
        }

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        if len(text) < LONG:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        else:  # as a batch, for only then the library lets other threads run meanwhile
            [encoded] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids = encoded.ids
        return ids

    def fill_in(self, before: str | Sequence[int], after: str, add_special_tokens: bool = True) -> list[int]:
        """The prompt of what stands between two texts; raises InvalidRequest where the model cannot be asked that."""
        if self.infill is None:
            raise InvalidRequest(
                "suffix: this model has no tokens for filling in the middle; put what follows into the prompt",
                param="suffix",
                code="unsupported_parameter",
            )
        bare = self.encode(before, add_special_tokens=False) if isinstance(before, str) else list(before)
        lead = self._lead() if isinstance(before, str) and add_special_tokens else []
        return self.infill.prompt(lead, bare, self._within(after))

    def _lead(self) -> list[int]:
        """The special tokens that every text begins with."""
        (plain, *_), whole = self.encode("a", add_special_tokens=False), self.encode("a")
        return whole[: whole.index(plain)] if plain in whole else []

    def _within(self, text: str) -> list[int]:
        """`text` where it does not begin one: some tokenizers put a space before what they take for a beginning."""
        line = self.encode("\n", add_special_tokens=False)
        whole = self.encode("\n" + text, add_special_tokens=False)
        return whole[len(line) :] if whole[: len(line)] == line else self.encode(text, add_special_tokens=False)

    @functools.cached_property
    def longest_token(self) -> Longest | None:
        """How much of a text one token stands for; None where that has no bound."""
        return longest_token(self._backend, self._pieces, self.vocab_size)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of all of `ids` at once."""
        text: str
        if len(ids) < LONG:
            text = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        else:  # as `encode`
            [text] = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return text

    def written(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        renderer: Renderer = render,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the chat template makes of a conversation; `variables` reach the template by name.

        `renderer` is for a `chat_template` that nobody here vouches for.
        """
        template = self.template(chat_template, with_tools=tools is not None)
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
        if not messages:
            raise InvalidRequest("the conversation is empty", param="messages")
        told = {
            "messages": [{key: value for key, value in message.items() if value is not None} for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None if documents is None else [dict(document) for document in documents],
            "chat_template": template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }
        return renderer({**self._special_tokens, **(variables or {}), **told})

    def template(self, asked: str | None = None, *, with_tools: bool = False) -> str | None:
        """The chat template in force, by its text; `asked`: one that was asked for, by name or in words."""
        return chosen(self._templates, asked, with_tools=with_tools)

    def shows_tools(self, chat_template: str | None = None, renderer: Renderer = render) -> bool:
        """Whether the chat template tells the model of tools: it is tried out, the model's own once."""
        if chat_template is None and self._shows_tools is not None:
            return self._shows_tools
        told: dict[str, Any] = {"chat_template": chat_template, "renderer": renderer, "tools": [PROBE]}
        try:
            shows = PROBE["function"]["name"] in self.written([{"role": "user", "content": "?"}], **told)
        except InvalidRequest:
            shows = True  # it has its own opinion of that conversation, and will say so of others
        if chat_template is None:
            self._shows_tools = shows
        return shows

    def render(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> list[int]:
        """The tokens of `written`, which takes the same."""
        return self.encode(self.written(messages, **fields), add_special_tokens=False)

    def token_ids(self, words: Sequence[str]) -> tuple[int, ...]:
        """Those of `words` that are one token each."""
        found = [self._backend.token_to_id(word) for word in words]
        return tuple(token for token in found if token is not None)

    def special_ids(self, words: Sequence[str]) -> tuple[int, ...]:
        """Those of `words` that are one special token each, which texts do not show by themselves."""
        return tuple(token for token in self.token_ids(words) if token in self._pieces.special)

    def spelled(self, params: SamplingParams) -> SamplingParams:
        """`params` with its `bad_words` as token ids: each as a text begins with it, and as it follows a space."""
        if not params.bad_words:
            return params
        written: list[str] = []
        for word in params.bad_words:
            bare = word.lstrip(" ")
            written += [bare or word, " " + bare]
        spelled = [tuple(self.encode(text, add_special_tokens=False)) for text in dict.fromkeys(written)]
        ids = tuple(dict.fromkeys(sequence for sequence in spelled if sequence))
        return dataclasses.replace(params, bad_words=(), bad_words_ids=params.bad_words_ids + ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text; a part of a character, perhaps."""
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """`token_bytes` for display: bytes that are no whole character come out as U+FFFD."""
        return self._pieces[token_id].decode("utf-8", "replace")

    def vocabulary(self, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """What grammars are told: the bytes of all `vocab_size` tokens of the model, some of which may be no token."""
        tokens = [self._pieces[token] for token in range(vocab_size)]
        return Vocabulary(
            tokens, frozenset(t for t in self._pieces.special if t < vocab_size), tuple(eos_token_ids), self._backend
        )

    def detokenizer(self, params: SamplingParams, prompt: Sequence[int]) -> Detokenizer:
        """Turns the tokens that follow `prompt` into text as they come."""
        return Detokenizer(self._pieces, params, prompt)


def facts_of(tokenizer: Any) -> dict[str, Any]:
    """All that is used of a transformers tokenizer, as JSON; raises Unsupported for what `tokenizers` cannot run."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise Unsupported(f"{type(tokenizer).__name__} is not one of the `tokenizers` library")
    return {
        "tokenizer": backend.to_str(),
        "chat_template": tokenizer.chat_template,
        "special_tokens": dict(tokenizer.special_tokens_map),
        "special_ids": list(tokenizer.all_special_ids),
        "eos_token_ids": [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id],
        "vocab_size": len(tokenizer),
    }


def read_tokenizer(source: Source, *, trust_remote_code: bool = False) -> Any:
    """The transformers tokenizer, which takes seconds; raises Unsupported where there is none."""
    from transformers import AutoTokenizer

    try:
        if source.kind == "folder":
            return AutoTokenizer.from_pretrained(source.path, trust_remote_code=trust_remote_code)
        with tempfile.TemporaryDirectory() as folder:
            converted = AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
            converted.save_pretrained(folder)
            return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, ImportError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise Unsupported(f"no tokenizer can be read from {source.path}: {first_line}", param="model") from error


def read_apart(source: Source) -> None:
    """Have a child read a tokenizer that nothing is remembered of, and the config with it: transformers would leave
    80 MB in this process.

    What goes wrong there goes wrong once more, in words, in `Text.load`.
    """
    if not is_remembered(KIND, state_of(_files(source))):
        command = [sys.executable, "-m", __name__, str(source.path), source.kind]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _files(source: Source) -> list[Path]:
    if source.kind == "gguf":
        return [source.path]
    templates = source.path / "additional_chat_templates"
    found = [*source.path.iterdir(), *(templates.iterdir() if templates.is_dir() else ())]
    return [file for file in found if file.suffix in TOLD_IN and file.is_file()]


if __name__ == "__main__":
    read = Source(Path(sys.argv[1]), "gguf" if sys.argv[2] == "gguf" else "folder", "")
    Text.load(read)
    from ..models.opened import open_model  # torch, which a process that only answers HTTP has no use for

    open_model(read)  # which remembers what transformers makes of config.json

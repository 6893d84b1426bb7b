"""Log-probabilities in the three shapes that clients know: chat, completions, and vLLM's prompt_logprobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..engine.detokenizer import Detokenizer
from ..engine.request import TokenLogprobs
from ..engine.text import Text
from .writing import OneByOne

FLOOR = -9999.0  # stands for minus infinity, which JSON cannot say


@dataclass(frozen=True, slots=True)
class Speller:
    """How token ids are spelled in an answer: as text, or as `token_id:N` when the caller asks."""

    text: Text
    as_ids: bool = False

    def token(self, token_id: int) -> str:
        """The name of one token."""
        return f"token_id:{token_id}" if self.as_ids else self.text.token_text(token_id)

    def key(self, token_id: int) -> str:
        """The name of one token where nothing stands beside it: what is no text by itself is spelled as OpenAI does,
        `bytes:\\xe2\\x82`, so that tokens which share a character can be told apart."""
        if self.as_ids:
            return self.token(token_id)
        piece = self.text.token_bytes(token_id)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return f"bytes:{repr(piece)[2:-1]}"

    def entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A token as chat shows it."""
        return {
            "token": self.token(token_id),
            "logprob": max(logprob, FLOOR),
            "bytes": list(self.text.token_bytes(token_id)),
        }


def chat_content(found: Iterable[TokenLogprobs], top: int, speller: Speller) -> Iterator[dict[str, Any]]:
    """The items of `logprobs.content`."""
    for item in found:
        rivals = [speller.entry(t, p) for t, p in islice(item.top.items(), top)]
        yield {**speller.entry(item.token_id, item.logprob), "top_logprobs": rivals}


@dataclass(slots=True)
class CompletionLogprobs:
    """The four parallel lists of a completion, chunk after chunk. `text` is that of the choice: an offset is where in
    it a token begins, or the character that it goes on with."""

    speller: Speller
    top: int
    text: Detokenizer
    _offset: int = 0

    def take(self, found: Sequence[TokenLogprobs | None], token_ids: Sequence[int]) -> dict[str, Any]:
        """The lists for the next tokens; None stands for a first prompt token, which nothing predicts."""
        shown: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": []}
        for token_id, item in zip(token_ids, found, strict=True):
            shown["text_offset"].append(self._offset)
            shown["tokens"].append(self.speller.key(token_id))
            shown["token_logprobs"].append(None if item is None else max(item.logprob, FLOOR))
            self._offset += len(self.text.push([token_id]))
        top = OneByOne(lambda: (None if item is None else self._top(item) for item in found))
        return {**shown, "top_logprobs": top}

    def _top(self, item: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens, and the chosen one when it is not among them."""
        named: dict[str, float] = {}
        for token_id, logprob in (*islice(item.top.items(), self.top), (item.token_id, item.logprob)):
            named.setdefault(self.speller.key(token_id), max(logprob, FLOOR))
        return named


def of_prompt(found: Sequence[TokenLogprobs | None] | None, speller: Speller, top: int) -> OneByOne | None:
    """vLLM's `prompt_logprobs`: for each position the candidates by id, None at the first."""
    if found is None:
        return None
    return OneByOne(lambda: (None if item is None else _candidates(item, speller, top) for item in found))


def _candidates(item: TokenLogprobs, speller: Speller, top: int) -> Mapping[str, Any]:
    """The token that stands there, with its rank, and the most likely ones."""
    ranked = {token_id: (rank, p) for rank, (token_id, p) in enumerate(islice(item.top.items(), top), start=1)}
    ranked[item.token_id] = (item.rank, item.logprob)
    return {
        str(token_id): {"logprob": max(p, FLOOR), "rank": rank, "decoded_token": speller.token(token_id)}
        for token_id, (rank, p) in ranked.items()
    }

"""Vocabularies of real tokenizers, and texts on their way through a matcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from aril.engine.grammar.base import Bits, Matcher, Vocabulary, words_of
from aril.engine.text import Text
from aril.models.source import locate


def vocabulary_of(model: str | Path, *, room: int = 0) -> Vocabulary:
    """Of a model's tokenizer; `room`: ids that the model has on top, and that are no tokens."""
    text = Text.load(locate(str(model)))
    return text.vocabulary(text.vocab_size + room, sorted(text.eos_token_ids))


def tokens_of(vocabulary: Vocabulary, text: str) -> list[int]:
    """`text` as the model would write it."""
    found = vocabulary.encode(text)
    assert found is not None
    return found


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The tokens that may come next."""
    bits: Bits = np.zeros(words_of(len(vocabulary.tokens)), np.int32)
    matcher.fill(bits)
    flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
    return set(flags.nonzero()[0].tolist())


def may_end(matcher: Matcher, vocabulary: Vocabulary) -> bool:
    """Whether the text may end here."""
    return bool(allowed(matcher, vocabulary) & set(vocabulary.eos))


def takes(matcher: Matcher, vocabulary: Vocabulary, text: str) -> bool:
    """Whether `text` may come, and may be all; it goes by the longest token that is allowed and fits."""
    rest = text.encode()
    while rest:
        fitting = [t for t in allowed(matcher, vocabulary) if vocabulary.tokens[t] and t not in vocabulary.eos]
        fitting = [t for t in fitting if rest.startswith(vocabulary.tokens[t])]
        if not fitting:
            return False
        token = max(fitting, key=lambda t: len(vocabulary.tokens[t]))
        matcher.accept(token)
        rest = rest[len(vocabulary.tokens[token]) :]
    return may_end(matcher, vocabulary)

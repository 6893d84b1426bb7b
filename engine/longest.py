"""How many characters of a text one token can stand for, where that can be known: what bounds the tokens of a text
before it is encoded. Knows vocabularies, no model and no request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

from .pieces import Pieces

# Characters that canonical composition makes one of: U+1F84 and its like stand for a letter and three marks.
COMPOSED = 4
CUTTERS = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts")  # unless what they cut at goes


CONTINUES = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character


@dataclass(frozen=True, slots=True)
class Longest:
    """The most characters that one token stands for. One that begins with a byte of `left_out` may have no token."""

    characters: int
    left_out: bytes = b""

    def fewest(self, text: str) -> int:
        """Tokens that `text` has at least."""
        num_kept = len(text)
        if self.left_out:
            num_kept = len(text.encode("utf-8", "surrogatepass").translate(None, CONTINUES + self.left_out))
        return -(-num_kept // self.characters)


def longest_token(backend: Tokenizer, pieces: Pieces, vocab_size: int) -> Longest | None:
    """None where a token may stand for any number of characters: some tokenizers leave out or fold what they meet."""
    model = backend.model
    if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    cutters = _parts(backend.pre_tokenizer, "pretokenizers")
    if not all(map(_keeps, cutters)) or not (model.byte_fallback or any(c["type"] == "ByteLevel" for c in cutters)):
        return None  # something is left out, or what is no token is unknown, however long it is
    shrinks = [_shrinks_by(part) for part in _parts(backend.normalizer, "normalizers")]
    if None in shrinks or any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    tokens = [pieces[token_id] for token_id in range(vocab_size)]
    left_out = bytes({*range(256)} - {token[0] for token in tokens if len(token) == 1})
    if left_out and (shrinks or model.byte_fallback):
        return None  # what is kept of a text might become what is left out, or a part of what is unknown
    longest = max(sum(byte & 0xC0 != 0x80 for byte in token) for token in tokens)
    return Longest(longest * max((shrink for shrink in shrinks if shrink), default=1), left_out)


def _parts(whole: Any, inner: str) -> Sequence[Mapping[str, Any]]:
    """What a normalizer or pre-tokenizer is made of."""
    if whole is None:
        return []
    said: Mapping[str, Any] = json.loads(whole.__getstate__())
    parts: Sequence[Mapping[str, Any]] = said[inner] if said["type"] == "Sequence" else [said]
    return parts


def _keeps(cutter: Mapping[str, Any]) -> bool:
    return cutter["type"] in CUTTERS and cutter.get("behavior") != "Removed"


def _shrinks_by(normalizer: Mapping[str, Any]) -> int | None:
    """How many characters may become one; None for any number, or where it is not known."""
    match normalizer:
        case {"type": "NFC"}:
            return COMPOSED
        case {"type": "NFD" | "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if len(old) <= len(new):
            return 1
    return None

"""What each token adds to the text, as bytes, whatever kind of tokenizer wrote the vocabulary.

Byte-level tokenizers (GPT-2's alphabet of printable stand-ins) and SentencePiece-like ones (a mark for the space,
`<0x0A>` for single bytes) both come down to one byte string per token. It knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.errors import Unsupported

KNOWN = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip")


class Pieces:
    """`pieces[token_id]` is the token's bytes; an id without a token is empty.

    `drops_first_space`: whether a text that begins with a space loses it, as SentencePiece vocabularies have it.
    Raises Unsupported for a decoder that is not made of KNOWN parts.
    """

    def __init__(
        self, decoder: Mapping[str, Any] | None, token: Callable[[int], str | None], special: frozenset[int]
    ) -> None:
        self.special = special
        self._token = token
        self._cache: dict[int, bytes] = {}
        self._replace: list[tuple[str, str]] = []
        self._byte_level = self._byte_fallback = self.drops_first_space = False
        for part in _parts(decoder):
            self._learn(part)

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._read(token_id)
        return piece

    def _learn(self, part: Mapping[str, Any]) -> None:
        match part["type"]:
            case "ByteLevel":
                self._byte_level = True
            case "ByteFallback":
                self._byte_fallback = True
            case "Replace":
                self._replace.append((part["pattern"]["String"], part["content"]))
            case "Metaspace":
                self._replace.append((part["replacement"], " "))
                self.drops_first_space = part.get("prepend_scheme", "always") != "never"
            case "Strip":
                self.drops_first_space = part["start"] > 0 and part["content"] == " "

    def _read(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return _from_alphabet(token)
        for old, new in self._replace:
            token = token.replace(old, new)
        return _from_hex(token) if self._byte_fallback else token.encode()


def _parts(decoder: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if decoder is None:
        raise Unsupported("this tokenizer does not say how its tokens are joined to text (it has no decoder)")
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for part in parts:
        regex = part["type"] == "Replace" and "String" not in part["pattern"]
        if part["type"] not in KNOWN or regex:
            raise Unsupported(
                f"this tokenizer's decoder uses {part['type']}{' with a regex' if regex else ''}; "
                f"there are {', '.join(KNOWN)}"
            )
    return parts


def _alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: printable Latin-1 bytes are themselves, the others follow from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + at): b for at, b in enumerate(others)}


_ALPHABET = _alphabet()


def _from_alphabet(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[c] for c in token)
    except KeyError:  # an added token, written in plain text
        return token.encode()


def _from_hex(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.encode()

"""Tokens to text, piece by piece: the pieces are the whole, and a stop string never leaks."""

import json
from collections.abc import Sequence

import pytest
from aril.core.errors import Unsupported
from aril.engine.detokenizer import Detokenizer
from aril.engine.params import SamplingParams
from aril.engine.pieces import Pieces
from builders.models import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE


def pieces_of(tokenizer: Tokenizer, special: Sequence[str]) -> Pieces:
    ids = frozenset(tokenizer.token_to_id(token) for token in special)
    return Pieces(json.loads(tokenizer.decoder.__getstate__()), tokenizer.id_to_token, ids)


def sentencepiece_like() -> Tokenizer:
    words = [
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "\u2581the",
        "seed",
        "\u00e9",
        "a",
        "b",
    ]
    tokenizer = Tokenizer(BPE({word: at for at, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


BYTE_LEVEL = make_tokenizer(vocab_size=512).backend_tokenizer
SENTENCEPIECE = sentencepiece_like()
ALL = {
    "byte-level": (BYTE_LEVEL, pieces_of(BYTE_LEVEL, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])),
    "sentencepiece": (SENTENCEPIECE, pieces_of(SENTENCEPIECE, ["<s>", "</s>"])),
}


def stream(
    pieces: Pieces, ids: Sequence[int], prompt: Sequence[int] = (), **fields: object
) -> tuple[list[str], Detokenizer]:
    detokenizer = Detokenizer(pieces, SamplingParams(**fields), prompt)  # type: ignore[arg-type]
    parts = [detokenizer.push([token]) for token in ids]
    return [*parts, detokenizer.finish()], detokenizer


@given(st.lists(st.integers(0, 511)), st.booleans())
def test_byte_level_pieces_join_to_the_decoded_whole(ids, skip):
    tokenizer, pieces = ALL["byte-level"]
    full_stop = tokenizer.encode(".").ids  # so that no character is cut short
    parts, _ = stream(pieces, ids + full_stop, skip_special_tokens=skip)
    assert "".join(parts) == tokenizer.decode(ids + full_stop, skip_special_tokens=skip)


@given(st.text(), st.lists(st.sampled_from(["<s>", "</s>", "\u2581", "\u2581the", "seed", "a"])), st.booleans())
def test_byte_fallback_pieces_join_to_the_decoded_whole(text, words, skip):
    tokenizer, pieces = ALL["sentencepiece"]
    ids = [2 + byte for byte in text.encode("utf-8", "ignore")]
    ids = [*map(tokenizer.token_to_id, words), *ids, *map(tokenizer.token_to_id, reversed(words))]
    parts, _ = stream(pieces, ids, skip_special_tokens=skip)
    assert "".join(parts) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ALL)
def test_output_continues_the_prompt(kind):
    tokenizer, pieces = ALL[kind]
    whole = "the d\u00e9j\u00e0 \U0001f642 the" if kind == "byte-level" else "\u2581the"
    ids = tokenizer.encode(whole).ids if kind == "byte-level" else [tokenizer.token_to_id("\u2581the")] * 3
    for cut in range(1, len(ids)):
        prompt, (parts, _) = ids[:cut], stream(pieces, ids[cut:], ids[:cut])
        text = tokenizer.decode(prompt)
        if not text.endswith("\ufffd"):
            assert text + "".join(parts) == tokenizer.decode(ids)


def test_no_piece_holds_half_a_character():
    tokenizer, pieces = ALL["byte-level"]
    parts, _ = stream(pieces, tokenizer.encode("\U0001f30d\U0001f642\u4e16\u754c").ids)
    assert "".join(parts) == "\U0001f30d\U0001f642\u4e16\u754c"
    assert not any("\ufffd" in part for part in parts)


def test_a_character_that_the_end_cuts_short_is_left_out():
    tokenizer, pieces = ALL["byte-level"]
    ids = tokenizer.encode("\U0001f44b\U0001f3fd").ids
    texts = ["".join(stream(pieces, ids[:cut])[0]) for cut in range(len(ids) + 1)]
    assert set(texts) == {"", "\U0001f44b", "\U0001f44b\U0001f3fd"}


def test_a_character_that_the_prompt_left_unfinished_is_completed():
    pieces = ALL["sentencepiece"][1]
    ids = [2 + byte for byte in "\U0001f642".encode()]
    parts, _ = stream(pieces, ids[2:], ids[:2])
    assert "".join(parts) == "\U0001f642"


def stopped_by(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The plain meaning of stop strings: the first to be complete ends the text; the longest, if several are."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text, stops):
    tokenizer, pieces = ALL["byte-level"]
    parts, detokenizer = stream(pieces, tokenizer.encode(text).ids, stop=tuple(stops))
    assert ("".join(parts), detokenizer.stop) == stopped_by(text, stops)


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_only_what_may_become_a_stop_string_is_held_back(text, stops):
    pieces = ALL["byte-level"][1]
    detokenizer = Detokenizer(pieces, SamplingParams(stop=tuple(stops)), ())
    seen = certain = ""
    for char in stopped_by(text, stops)[0]:
        seen += char
        certain += detokenizer.push(BYTE_LEVEL.encode(char).ids)
        held = seen.removeprefix(certain)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_can_be_kept_in_the_output():
    tokenizer, pieces = ALL["byte-level"]
    ids = tokenizer.encode("one END two").ids
    parts, detokenizer = stream(pieces, ids, stop=("END",), include_stop_str_in_output=True)
    assert ("".join(parts), detokenizer.stop) == ("one END", "END")


def test_stop_strings_do_not_end_a_text_before_min_tokens():
    pieces = ALL["byte-level"][1]
    ids = [BYTE_LEVEL.token_to_id("a")] * 6
    parts, detokenizer = stream(pieces, ids, stop=("a",), min_tokens=4, max_tokens=9)
    assert ("".join(parts), detokenizer.stop) == ("aaaa", "a")


def test_a_decoder_of_unknown_parts_is_refused_by_name():
    with pytest.raises(Unsupported, match="WordPiece"):
        Pieces(json.loads(decoders.WordPiece().__getstate__()), lambda _: None, frozenset())

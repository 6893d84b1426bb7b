"""How many characters one token may stand for, beside what tokenizers do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from aril.engine.longest import Longest, longest_token
from aril.engine.pieces import Pieces
from builders.models import LINES
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ODD = ["\u03c9\u0314\u0342\u0345", "\U0001f642", "e\u0301", "\u4f60", " " * 30, "\n\n", "zebra" * 9, "\x00", "\ufb01"]
Change = Callable[[Tokenizer], Any]


def byte_level(change: Change = lambda _: None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return trained(made, change, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<end>"])


def sentence_piece(change: Change = lambda _: None) -> Tokenizer:
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return trained(made, change, special_tokens=["<unk>", *BYTES], limit_alphabet=40)


def knowing(letters: str, change: Change = lambda _: None) -> Tokenizer:
    """One that leaves out all bytes but those of `letters` and of what it was trained on."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    spelled = [letter for piece, _ in made.pre_tokenizer.pre_tokenize_str(letters) for letter in piece]
    return trained(made, change, initial_alphabet=spelled)


def trained(made: Tokenizer, change: Change, **fields: Any) -> Tokenizer:
    made.train_from_iterator(LINES, BpeTrainer(vocab_size=600, show_progress=False, **fields))
    change(made)
    return made


def longest(tokenizer: Tokenizer) -> Longest | None:
    decoder = json.loads(tokenizer.decoder.__getstate__())
    return longest_token(tokenizer, Pieces(decoder, tokenizer.id_to_token, frozenset()), tokenizer.get_vocab_size())


@pytest.mark.parametrize(
    "made",
    [
        byte_level(),
        byte_level(lambda made: setattr(made, "normalizer", normalizers.NFC())),
        byte_level(lambda made: made.add_special_tokens(["<|a_special_token_of_many_characters|>"])),
        sentence_piece(),
        knowing("\u00e9\U0001f642"),
        knowing("a"),
    ],
    ids=["byte level", "composed", "special tokens", "sentence piece", "bytes left out", "most bytes left out"],
)
def test_no_text_has_fewer_tokens_than_its_characters_say(made: Tokenizer) -> None:
    draw, most = random.Random(0), longest(made)
    assert most is not None
    texts = ["".join(draw.choices([*ODD, *LINES, *"aeiou "], k=draw.randint(1, 8))) for _ in range(300)]
    for text in [*texts, *ODD, "<|a_special_token_of_many_characters|>" * 3]:
        assert most.fewest(text) <= len(made.encode(text, add_special_tokens=False).ids)


def drop_white_space(made: Tokenizer) -> None:
    cutters = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(cutters)


def cut_and_drop(made: Tokenizer) -> None:
    split = pre_tokenizers.Split("a", "removed")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


@pytest.mark.parametrize(
    "change",
    [
        drop_white_space,
        cut_and_drop,
        lambda made: setattr(made, "normalizer", normalizers.Strip()),
        lambda made: setattr(made, "normalizer", normalizers.Replace("  ", " ")),
        lambda made: made.add_special_tokens([AddedToken("<wide>", lstrip=True)]),
    ],
)
def test_where_a_token_may_stand_for_any_text_there_is_no_longest(change: Change) -> None:
    assert longest(byte_level(change)) is None


def test_what_is_left_out_does_not_count_and_all_else_does() -> None:
    most = longest(knowing("a"))
    assert most is not None
    assert most.fewest("\U00040000" * 100) == 0
    assert most.fewest("a\U00040000" * 1000) == most.fewest("a" * 1000) > 0


def test_where_a_text_may_become_what_is_left_out_there_is_no_longest() -> None:
    assert longest(knowing("a", lambda made: setattr(made, "normalizer", normalizers.NFC()))) is None


def test_where_what_is_unknown_is_one_token_there_is_no_longest() -> None:
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert longest(trained(made, lambda _: None, special_tokens=["<unk>", *BYTES[:200]])) is None

"""Filling in the middle: which models can be asked, and in which order they are."""

from __future__ import annotations

import pytest
from aril.core.errors import InvalidRequest
from aril.engine.infill import FAMILIES
from aril.engine.text import Text, facts_of
from builders.models import BEGIN, make_tokenizer
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

BEFORE, AFTER = "def seeds(n):\n    ", "\n    return aril\n"


def of(tokenizer: PreTrainedTokenizerFast) -> Text:
    facts = facts_of(tokenizer)
    return Text(Tokenizer.from_str(facts["tokenizer"]), facts)


def with_marks(*marks: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that adds BOS and knows `marks`."""
    tokenizer = make_tokenizer(vocab_size=512)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    return tokenizer


@pytest.mark.parametrize("family", FAMILIES, ids=[family[0] for family in FAMILIES])
def test_a_prompt_is_what_stands_before_then_after_then_the_middle(family: tuple[str, str, str]) -> None:
    text = of(with_marks(*family))
    prefix, suffix, middle = family
    for lead, add_special_tokens in ((BEGIN, True), ("", False)):
        ids = text.fill_in(BEFORE, AFTER, add_special_tokens)
        assert text.decode(ids, skip_special_tokens=False) == f"{lead}{prefix}{BEFORE}{suffix}{AFTER}{middle}"


def test_token_ids_stand_as_they_are() -> None:
    text = of(with_marks(*FAMILIES[0]))
    assert text.fill_in([5, 6], "") == [512, 5, 6, 513, 514]


def test_an_empty_beginning_has_its_lead_too() -> None:
    text = of(with_marks(*FAMILIES[1]))
    assert text.fill_in("", "x")[:3] == [0, 512, 513]


def test_what_follows_gets_no_space_of_its_own() -> None:
    words = {"<s>": 0, "\u2581<PRE>": 1, "\u2581<SUF>": 2, "\u2581<MID>": 3, "\u2581<EOT>": 4}
    pieces = {piece: 5 + at for at, piece in enumerate(["\u2581", "a", "b", "\n", "\u2581a", "<unk>"])}
    raw = Tokenizer(BPE({**words, **pieces}, [("\u2581", "a")], unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    text = of(PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>"))
    assert text.infill is not None
    assert text.infill.ends == (4,)
    assert text.fill_in("a", "ab") == [1, pieces["\u2581a"], 2, pieces["a"], pieces["b"], 3]
    assert text.fill_in("a", " a") == [1, pieces["\u2581a"], 2, pieces["\u2581a"], 3]


@pytest.mark.parametrize("marks", [(), FAMILIES[0][:2], (FAMILIES[0][0], *FAMILIES[1][1:])])
def test_a_model_without_the_tokens_says_so(marks: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="no tokens for filling in the middle") as caught:
        of(with_marks(*marks)).fill_in(BEFORE, AFTER)
    assert caught.value.param == "suffix"

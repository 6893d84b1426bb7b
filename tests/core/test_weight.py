"""What is read of JSON: so many values, whatever they weigh, and nothing is read before that is known."""

from __future__ import annotations

import json

import pytest
from aril.core import weight
from aril.core.body import Body, parse
from aril.core.errors import InvalidRequest

TOO_MANY_PARTS = weight.MOST_PARTS + 1


class Anything(Body):
    """Takes every object."""


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":[' + b"1," * (weight.MOST_VALUES + 1) + b"1]}",
        b'{"a":[' + b"[]," * TOO_MANY_PARTS + b"1]}",
        b'{"a":[' + b"{}," * TOO_MANY_PARTS + b"1]}",
        b'{"a":[' + b'"",' * TOO_MANY_PARTS + b"1]}",
        b"{" + b'"a":1,' * TOO_MANY_PARTS + b'"b":1}',
        b"[" * TOO_MANY_PARTS,
    ],
    ids=["numbers", "lists", "objects", "texts", "names", "no JSON"],
)
def test_too_many_values_are_refused_before_they_are_read(content: bytes) -> None:
    with pytest.raises(InvalidRequest, match="send several requests") as caught:
        parse(Anything, content)
    assert caught.value.code == "too_many_values"


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":[' + b"1," * weight.MOST_VALUES + b"1]}",
        json.dumps({"messages": [{"role": "user", "content": '[{,"'}] * 65_536}).encode(),
        json.dumps({"a": "1,2,[{" * weight.MOST_VALUES}).encode(),
        json.dumps({"a": '"\\' * weight.MOST_VALUES}).encode(),
        b'{"a":"' + b",\\" * weight.MOST_VALUES + b'"',  # the mark that would end it is part of the text
    ],
    ids=["numbers", "messages", "marks in a text", "quotes in a text", "no JSON"],
)
def test_marks_within_texts_are_no_values(content: bytes) -> None:
    weight.check_weight(content)

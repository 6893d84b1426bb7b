"""What an adapter may be called."""

from __future__ import annotations

import pytest
from aril.admin_api.names import check_name
from aril.core.errors import ArilError, Conflict, InvalidRequest


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "org/name", "a/b", "7", "a" * 128])
def test_a_name_of_one_or_two_parts_is_fine(name: str) -> None:
    check_name(name, "base")


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a/b/c", "..", ".", "-a", "a b", "a\n", "a//b", "\u00e9", "a" * 129, "a/../b", "a/.b"]
)
def test_an_impossible_name_is_refused(name: str) -> None:
    assert isinstance(refusal_of(name), InvalidRequest)


def test_the_name_of_the_base_is_taken() -> None:
    assert isinstance(refusal_of("base"), Conflict)


def refusal_of(name: str) -> ArilError:
    with pytest.raises(ArilError) as refusal:
        check_name(name, "base")
    assert refusal.value.param == "name"
    return refusal.value

"""What a body that does not fit its schema is told."""

from __future__ import annotations

import pytest
from aril.core.body import Body, ExactBody, parse, parse_exact
from aril.core.errors import InvalidRequest
from pydantic import field_validator


class Seeded(Body):
    """One whose field has a check of its own."""

    seed: int | None = None

    @field_validator("seed")
    @classmethod
    def _even(cls, seed: int | None) -> int | None:
        if seed is not None and seed % 2:
            raise ValueError("give an even number")
        return seed


class ExactlySeeded(Seeded, ExactBody):
    """The same, of the admin face."""


@pytest.mark.parametrize(("read", "schema"), [(parse, Seeded), (parse_exact, ExactlySeeded)])
def test_a_check_of_our_own_is_told_in_its_own_words(read, schema) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest) as told:
        read(schema, b'{"seed": 1}')
    assert (told.value.message, told.value.param) == ("seed: give an even number", "seed")

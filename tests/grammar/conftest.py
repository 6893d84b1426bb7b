"""A tiny model with a tokenizer of 512 tokens, which every test of grammars may read."""

from __future__ import annotations

from pathlib import Path

import pytest
from aril.engine.grammar.base import Vocabulary
from builders.grammars import vocabulary_of
from builders.models import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    """Its tokens, and 40 ids on top that are none."""
    return vocabulary_of(model, room=40)

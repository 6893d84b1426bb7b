"""A tiny model, an adapter of it, and `aril serve` in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from aril.commands._process import Server, running
from builders.adapters import make_adapter
from builders.commands import SMALL, Files
from builders.models import make_model


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """A command may point the log at the stderr of one test; the next test has another."""
    yield
    logging.getLogger("aril").handlers.clear()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Made once."""
    root = tmp_path_factory.mktemp("cli")
    model = make_model(root / "model")
    return Files(model, make_adapter(root / "seed", model))


@pytest.fixture(scope="session")
def server(files: Files) -> Iterator[Server]:
    """A server for all tests here."""
    with running(str(files.model), [*SMALL, "--served-model-name", "tiny"]) as found:
        yield found

"""A model's name -> files on this machine: the demo, a folder, a GGUF file, or a repository of the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ..core.errors import InvalidRequest, NotFound, Unsupported

DEMO = "demo"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model lies. `path` is a folder in Hugging Face's form or one .gguf file, as `kind` says."""

    path: Path
    kind: Literal["folder", "gguf"]
    name: str  # the id it is served under unless told otherwise
    is_demo: bool = False


def locate(model: str, *, revision: str | None = None, cache_dir: Path | None = None) -> Source:
    """Find `model`, fetching it when it is the demo or a hub id.

    `cache_dir` is where fetched files are kept: for the demo $ARIL_CACHE or ~/.cache/aril by default, for hub ids the
    hub's own cache. Raises NotFound with what was looked for where, Unavailable without a network, Unsupported for
    files in no form that is known, InvalidRequest for a revision of something that has none.
    """
    if model == DEMO:
        _refuse_revision(model, revision)
        from .demo import NAME, fetch_demo

        return Source(fetch_demo(cache_dir or default_cache()), "gguf", NAME, is_demo=True)
    path = Path(model).expanduser()
    if path.exists():
        _refuse_revision(model, revision)
        return _local(path, model)
    if not is_hub_id(model):
        raise NotFound(f"there is no file or folder {model!r} (looked for {path.absolute()})", param="model")
    from .hub import download

    return _local(download(model, revision=revision, cache_dir=cache_dir), model)


@contextmanager
def located_headers(model: str, *, revision: str | None = None, cache_dir: Path | None = None) -> Iterator[Source]:
    """As `locate`, but of a hub id only the papers are fetched whole, and of the weights only the headers.

    What was fetched goes again at the end. Raises what `locate` raises.
    """
    if not is_hub_id(model):
        yield locate(model, revision=revision, cache_dir=cache_dir)
        return
    from .hub import fetch_headers

    with TemporaryDirectory(prefix="aril-headers-") as folder:
        yield _local(fetch_headers(model, Path(folder), revision=revision, cache_dir=cache_dir), model)


def is_hub_id(model: str) -> bool:
    """Whether it is neither the demo nor anything on this machine, nor looks as if it should be."""
    return model != DEMO and not _looks_like_a_path(model) and not Path(model).expanduser().exists()


def default_cache() -> Path:
    """Aril's cache folder."""
    return Path(os.environ.get("ARIL_CACHE") or "~/.cache/aril").expanduser()


def _local(path: Path, name: str) -> Source:
    if path.is_file():
        if path.suffix != ".gguf":
            raise Unsupported(
                f"{path} is a file, but no .gguf file; name the folder that holds config.json", param="model"
            )
        return Source(path, "gguf", name)
    if (path / "config.json").is_file():
        return Source(path, "folder", name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Source(files[0], "gguf", name)
    if files:
        raise Unsupported(
            f"{path} holds several .gguf files; name one: {', '.join(f.name for f in files)}", param="model"
        )
    raise NotFound(f"{path.absolute()} is no model: it holds neither config.json nor a .gguf file", param="model")


def _looks_like_a_path(model: str) -> bool:
    """Whether it cannot be a hub id, which is `name` or `owner/name`."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model or model.endswith(".gguf")


def _refuse_revision(model: str, revision: str | None) -> None:
    if revision is not None:
        raise InvalidRequest(f"--revision {revision}: {model!r} is no hub id and has no revisions", param="revision")

"""Models of the Hugging Face hub: only the files that are needed, and errors that say what was looked for where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..core.errors import ArilError, Forbidden, NotFound, Unavailable, Unsupported
from .remote_header import RemoteFile, write_header

FORMS = (  # of weights: how file names begin and end, the best first
    ("model", ".safetensors"),
    ("gptq_model", ".safetensors"),
    ("pytorch_model", ".bin"),
)
WEIGHTS = (".safetensors", ".bin", ".gguf")
ABOUT = ["README.md", "LICEN*", "licen*", "COPYING*"]  # who may use it and how; only people read them
PAPERS = ["*.json", "*.jinja", "tokenizer.model", "*.txt"]  # config, tokenizer, chat template


def download(repo: str, *, revision: str | None = None, cache_dir: Path | None = None) -> Path:
    """The local folder of hub repository `repo` (or, of a GGUF repository, its one file).

    Raises NotFound (no such repository or revision), Forbidden (gated), Unavailable (no network, and not in the cache).
    """
    return _asked(repo, revision, cache_dir, lambda: _download(repo, revision, cache_dir))


def fetch_headers(repo: str, folder: Path, *, revision: str | None = None, cache_dir: Path | None = None) -> Path:
    """`repo` in `folder` (or, of a GGUF repository, the file there) without the numbers: weights are only as long as
    they should be. Those that an earlier download left are taken as they are. Raises what `download` raises.
    """
    return _asked(repo, revision, cache_dir, lambda: _fetch_headers(repo, folder, revision, cache_dir))


def _asked(repo: str, revision: str | None, cache_dir: Path | None, ask: Callable[[], Path]) -> Path:
    try:
        return ask()
    except GatedRepoError as error:
        raise Forbidden(f"{repo} is gated: accept its terms on the hub and set HF_TOKEN", param="model") from error
    except RevisionNotFoundError as error:
        raise NotFound(f"{repo} has no revision {revision!r} on {constants.ENDPOINT}", param="revision") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise NotFound(_sought(repo, f"no repository {repo!r} on {constants.ENDPOINT}"), param="model") from error
    except ArilError:
        raise
    except Exception as error:  # no network is said by whichever HTTP library this huggingface_hub has below it
        return _cached(repo, revision, cache_dir, error)


def _download(repo: str, revision: str | None, cache_dir: Path | None) -> Path:
    info = HfApi().model_info(repo, revision=revision)
    files = [sibling.rfilename for sibling in info.siblings or []]
    wanted = _needed(repo, files)
    folder = Path(snapshot_download(repo, revision=info.sha, cache_dir=cache_dir, allow_patterns=wanted))
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def _fetch_headers(repo: str, folder: Path, revision: str | None, cache_dir: Path | None) -> Path:
    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    patterns = _needed(repo, list(sizes))
    weights = [name for name in sizes if name.endswith(WEIGHTS) and any(fnmatch(name, p) for p in patterns)]
    papers = snapshot_download(
        repo, revision=info.sha, cache_dir=cache_dir, allow_patterns=[*PAPERS, *ABOUT], ignore_patterns=weights
    )
    for path in Path(papers).iterdir():
        (folder / path.name).symlink_to(path.resolve())
    for name in weights:
        here = folder / Path(name).name
        here.unlink(missing_ok=True)
        known = try_to_load_from_cache(repo, name, cache_dir=cache_dir, revision=info.sha)
        if isinstance(known, str):
            here.symlink_to(Path(known).resolve())
        else:
            write_header(here, sizes[name], RemoteFile(repo, name, str(info.sha)))
    return here if here.suffix == ".gguf" else folder


def _needed(repo: str, files: Sequence[str]) -> list[str]:
    """The patterns of the files to fetch: one form of the weights and the papers beside them."""
    top = [name for name in files if "/" not in name]
    for stem, ending in FORMS:
        if any(name.endswith(ending) and name.startswith(stem) for name in top):
            return [*PAPERS, f"{stem}*{ending}"]
    packed = [name for name in files if name.endswith(".gguf")]
    if len(packed) == 1:
        return packed
    if packed:
        raise Unsupported(
            f"{repo} holds several .gguf files; download one and name its path: {', '.join(sorted(packed))}",
            param="model",
        )
    forms = ", ".join(f"{stem}*{ending}" for stem, ending in FORMS)
    raise NotFound(f"{repo} holds no weights: no {forms} or .gguf", param="model")


def _cached(repo: str, revision: str | None, cache_dir: Path | None, cause: Exception) -> Path:
    """What an earlier download left, for machines without a network."""
    try:
        folder = Path(snapshot_download(repo, revision=revision, cache_dir=cache_dir, local_files_only=True))
    except LocalEntryNotFoundError:
        where = cache_dir or Path(constants.HF_HUB_CACHE)
        reason = f"{constants.ENDPOINT} cannot be reached ({type(cause).__name__}) and {where} holds no copy of it"
        raise Unavailable(_sought(repo, reason), param="model") from cause
    packed = sorted(folder.rglob("*.gguf"))
    return packed[0] if len(packed) == 1 and not (folder / "config.json").exists() else folder


def _sought(repo: str, reason: str) -> str:
    return (
        f"model {repo!r} was not found: there is no folder {Path(repo).absolute()}, and {reason}. "
        f"Name a local folder or .gguf file, or 'demo'"
    )

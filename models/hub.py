"""Models of the Hugging Face hub: only the files that are needed, and errors that say what was looked for where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..core.errors import ArilError, Forbidden, NotFound, Unavailable, Unsupported

PAPERS = ["*.json", "*.jinja", "tokenizer.model", "*.txt"]  # config, tokenizer, chat template


def download(repo: str, *, revision: str | None = None, cache_dir: Path | None = None) -> Path:
    """The local folder of hub repository `repo` (or, of a GGUF repository, its one file).

    Raises NotFound (no such repository or revision), Forbidden (gated), Unavailable (no network, and not in the cache).
    """
    try:
        return _download(repo, revision, cache_dir)
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


def _needed(repo: str, files: Sequence[str]) -> list[str]:
    """The patterns of the files to fetch: one form of the weights and the papers beside them."""
    top = [name for name in files if "/" not in name]
    for ending in (".safetensors", ".bin"):
        if any(name.endswith(ending) and name.startswith(("model", "pytorch_model")) for name in top):
            stem = "model" if ending == ".safetensors" else "pytorch_model"
            return [*PAPERS, f"{stem}*{ending}"]
    packed = [name for name in files if name.endswith(".gguf")]
    if len(packed) == 1:
        return packed
    if packed:
        raise Unsupported(
            f"{repo} holds several .gguf files; download one and name its path: {', '.join(sorted(packed))}",
            param="model",
        )
    raise NotFound(f"{repo} holds no weights: no model*.safetensors, pytorch_model*.bin or .gguf", param="model")


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

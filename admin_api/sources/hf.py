"""hf://organisation/repository@revision: an adapter on the Hugging Face hub, of the commit that the revision names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ...core.errors import ArilError, Forbidden, InvalidRequest, NotFound, Unavailable
from ...core.log import event, get_logger
from ...lora.store import KEPT
from ..origins import Allowed, Order, Origin

REPOSITORY = re.compile(r"/([^/@]+)(?:@([^@]+))?")
log = get_logger(__name__)


class HubSource:
    """Repositories of the hub at `endpoint`, by default HF_ENDPOINT's, with the server's own HF_TOKEN."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint or constants.ENDPOINT

    def check(self, origin: Origin, allowed: Allowed) -> None:
        """Raises InvalidRequest for what is no repository, Forbidden for what is not allowed."""
        if not REPOSITORY.fullmatch(origin.path):
            raise InvalidRequest(
                f"{origin} is no hub repository; write hf://organisation/name@revision", param="source"
            )
        allowed.check(origin)

    def fetch(self, origin: Origin, order: Order) -> str:
        """Download the files that are kept of an adapter."""
        self.check(origin, order.allowed)
        match = REPOSITORY.fullmatch(origin.path)
        assert match is not None
        repo, revision = f"{origin.host}/{match[1]}", match[2]
        with _said_as_ours(origin, self._endpoint):
            return self._download(origin, repo, revision, order)

    def _download(self, origin: Origin, repo: str, revision: str | None, order: Order) -> str:
        info = HfApi(self._endpoint).model_info(repo, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if file.rfilename in KEPT}
        if not sizes:
            raise NotFound(f"there is no adapter in {origin}: none of {', '.join(KEPT)}", param="source")
        order.room(origin, sum(sizes.values()))
        for name in sizes:
            hf_hub_download(repo, name, revision=info.sha, local_dir=order.folder, endpoint=self._endpoint)
        return f"hf://{repo}@{info.sha}"


@contextmanager
def _said_as_ours(origin: Origin, endpoint: str) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as error:
        raise Forbidden(f"{origin} is gated, and the server's HF_TOKEN does not open it", param="source") from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise NotFound(f"there is no {origin} on {endpoint}", param="source") from error
    except ArilError:
        raise
    except Exception as error:  # no network is said by whichever HTTP library this huggingface_hub has below it
        log.warning(event("hub_failed", source=origin, error=error))
        raise Unavailable(f"{origin} could not be fetched: {type(error).__name__}", param="source") from error


EXPORT = HubSource()

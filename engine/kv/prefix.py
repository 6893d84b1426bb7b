"""PrefixIndex: a token's KV depends only on the tokens up to it and on the adapter, so equal beginnings are shared.

The content of a full block is named by SHA-256 over the name before it and its own tokens; the chain begins with the
adapter's digest and the request's salt. Equal names therefore mean equal adapters, salts and tokens from the start on,
and a collision would be one of SHA-256. Two adapter names for the same bytes share; an adapter and the base never do,
nor do two salts: whoever finds a prompt cached learns that somebody with the same salt has sent it.
"""

from __future__ import annotations

from array import array
from hashlib import sha256

from ..request import Request
from .blocks import BlockPool


class PrefixIndex:
    """Finds and publishes full blocks by content. The names live in the pool, which forgets them when it evicts."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def match(self, request: Request) -> list[int]:
        """The longest chain of cached blocks from the start of `request`; its last token is always left to compute."""
        blocks: list[int] = []
        for at in range((request.num_tokens - 1) // self._block_size):
            block = self._pool.find(self._name(request, at))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, request: Request, at: int, block: int) -> None:
        """Let others find `block`, which holds the computed block number `at` of `request`."""
        self._pool.name(block, self._name(request, at))

    def _name(self, request: Request, at: int) -> bytes:
        """The name of block number `at`; kept in the request, as tokens are only ever appended."""
        names = request.block_keys
        while len(names) <= at:
            start = len(names) * self._block_size
            tokens = array("q", request.tokens_between(start, start + self._block_size))
            names.append(sha256((names[-1] if names else _salt(request)) + tokens.tobytes()).digest())
        return names[at]


def _salt(request: Request) -> bytes:
    """Where the chain begins; as long as every later name, so that no two chains can read alike."""
    digest = request.adapter.digest if request.adapter else ""  # hex: no salt can make it read as another's
    return sha256(f"{digest}:{request.salt}".encode("utf-8", "surrogatepass")).digest()

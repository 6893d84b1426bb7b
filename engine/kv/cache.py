"""KVTables: which blocks each request holds, and what must be copied so that nobody writes into a block of another's.

Blocks are written by one holder only: a row that would write into a shared or published block gets a copy first.
Knows when there is no room, but not what to do about it: that is the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..request import Request
from .blocks import BlockPool
from .prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class Growth:
    """How the blocks of one request changed: some were added, one may have been exchanged for a copy."""

    new_blocks: tuple[int, ...] = ()
    moved: tuple[int, int] | None = None  # index in its blocks, new block id


@dataclass(slots=True)
class _Table:
    blocks: list[int]
    num_published: int  # leading blocks whose content the index has seen


UNCHANGED = Growth()


class KVTables:
    """Owner of the block table of every request. `index` is None when prefixes are not cached."""

    def __init__(self, pool: BlockPool, index: PrefixIndex | None, block_size: int) -> None:
        self._pool = pool
        self._index = index
        self._block_size = block_size
        self._tables: dict[str, _Table] = {}
        self._copies: list[tuple[int, int]] = []
        self._sources: list[int] = []

    def blocks(self, request: Request) -> tuple[int, ...]:
        """The blocks that `request` holds, in the order of its tokens."""
        return tuple(self._tables[request.id].blocks)

    def admit(self, request: Request, *, spare: int, reuse: bool = True) -> int | None:
        """Hold blocks for all tokens of `request`; None when fewer than `spare` blocks would be left.

        Returns how many tokens need not be computed: found by content (`reuse`) or given by a fork.
        """
        if request.id in self._tables:
            return request.num_computed if self.grow(request, spare=spare) else None
        found = self._index.match(request) if self._index and reuse else []
        missing = self._num_blocks(request.num_tokens) - len(found)
        if missing + self._pool.num_idle(found) + spare > self._pool.num_free:
            return None
        self._pool.share(found)
        self._tables[request.id] = _Table(found + self._pool.take(missing), num_published=len(found))
        return len(found) * self._block_size

    def grow(self, request: Request, *, spare: int = 0) -> Growth | None:
        """Room to write every token not yet computed; None when fewer than `spare` blocks would be left."""
        blocks = self._tables[request.id].blocks
        missing = self._num_blocks(request.num_tokens) - len(blocks)
        first = request.num_computed // self._block_size  # all later blocks are new, and so its own
        shared = first < len(blocks) and not self._pool.writable(blocks[first])
        if not missing and not shared:
            return UNCHANGED
        if missing + shared + spare > self._pool.num_free:
            return None
        moved = self._copy(blocks, first) if shared else None
        added = self._pool.take(missing)
        blocks.extend(added)
        return Growth(tuple(added), moved)

    def branch(self, heirs: Sequence[tuple[Request, Request]], without: Sequence[Request]) -> set[str]:
        """Let each child of (child, parent) hold what its parent holds instead of its own, all at once; the ids of
        those that hold anything then. Those `without` an heir hold nothing.
        """
        given = {
            child.id: _Table(list(table.blocks), table.num_published)
            for child, parent in heirs
            if (table := self._tables.get(parent.id)) is not None
        }
        for table in given.values():
            self._pool.share(table.blocks)
        for request in [*(child for child, _ in heirs), *without]:
            self.free(request)
        self._tables.update(given)
        return set(given)

    def fork(self, parent: Request, child: Request) -> None:
        """Let `child` hold the blocks of the prompt that it has in common with `parent`, which has computed it.

        Only the last token of the prompt is left to compute.
        """
        table = self._tables[parent.id]
        child.num_computed = len(child.prompt) - 1
        common = table.blocks[: self._num_blocks(child.num_computed)]
        self._pool.share(common)
        published = min(table.num_published, child.num_computed // self._block_size)
        self._tables[child.id] = _Table(common, num_published=published)

    def publish(self, request: Request) -> None:
        """Let others find the blocks that `request` has filled with computed tokens."""
        table = self._tables[request.id]
        full = request.num_computed // self._block_size
        if self._index and full > table.num_published:
            for at in range(table.num_published, full):
                self._index.publish(request, at, table.blocks[at])
            table.num_published = full

    def free(self, request: Request) -> None:
        """Hold nothing for `request` any more; fine when nothing was held."""
        table = self._tables.pop(request.id, None)
        if table:
            self._pool.give_back(table.blocks)

    def take_copies(self) -> list[tuple[int, int]]:
        """Blocks to copy before the next pass: from, to."""
        copies, self._copies = self._copies, []
        return copies

    def settle(self) -> None:
        """The copies of the last step are made: their sources may go."""
        self._pool.give_back(self._sources)
        self._sources = []

    def _copy(self, blocks: list[int], at: int) -> tuple[int, int]:
        """Exchange a block for a copy. The old one stays held until the copy is made, so that nothing overwrites it."""
        old, (new,) = blocks[at], self._pool.take(1)
        self._copies.append((old, new))
        self._sources.append(old)
        blocks[at] = new
        return at, new

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

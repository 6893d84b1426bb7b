"""BlockPool: which blocks of the KV cache are held, by how many, and which may be taken next.

A block that nobody holds but whose content has a name keeps its content until its room is needed: it is shared again
when somebody asks for that content, or taken back, least recently used first, once the blank blocks are gone.
Knows ids and names only: neither tokens nor requests nor tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Owner of the reference counts of all blocks and of the names of their content."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._named: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._num_unused = num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # named and not held, least recently used first

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, whether or not their content still has a name."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that somebody has ever held: the first ones."""
        return self.num_blocks - self._num_unused

    def take(self, count: int) -> list[int]:
        """`count` blocks for their first holder, to be written; the caller has looked at `num_free`."""
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} free"
        return [self._take_one() for _ in range(count)]

    def share(self, blocks: Sequence[int]) -> None:
        """One more holder for each block, held or idle."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._idle[block]
            self._holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """One holder less for each block. The last ones become the first to be taken: a chain is lost from its end."""
        for block in reversed(blocks):
            assert self._holders[block] > 0, f"block {block} was given back once too often"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._set_free(block)

    def writable(self, block: int) -> bool:
        """Whether its one holder may write into it: nobody else reads it, now or by its name."""
        return self._holders[block] == 1 and self._names[block] is None

    def name(self, block: int, content: bytes) -> None:
        """Let a held, finished block be found as `content`; the first block of that content keeps the name."""
        if content not in self._named:
            self._named[content] = block
            self._names[block] = content

    def find(self, content: bytes) -> int | None:
        """The block that holds `content`."""
        return self._named.get(content)

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody holds: sharing them makes `num_free` smaller by as many."""
        return sum(self._holders[block] == 0 for block in blocks)

    def _take_one(self) -> int:
        if self._blank:
            block = self._blank.pop()
            self._num_unused = min(self._num_unused, len(self._blank))
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget_name(block)
        self._holders[block] = 1
        return block

    def _set_free(self, block: int) -> None:
        if self._names[block] is None:
            self._blank.append(block)
        else:
            self._idle[block] = None

    def _forget_name(self, block: int) -> None:
        content = self._names[block]
        assert content is not None, f"idle block {block} has no name"
        del self._named[content]
        self._names[block] = None

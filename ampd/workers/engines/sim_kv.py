"""The simulated engine's KV pool: blocks with a prefix cache, as vLLM's block pool keeps them (vllm/v1/core/block_pool.py).

A block is in use while something refers to it (a job, a pin). A block that nothing refers to stays in the prefix cache until its
room is needed; the one unused for longest goes first, and of one sequence the last.
"""

from __future__ import annotations

from collections.abc import Sequence


class Block:
    """One KV block: who refers to it, its key in the prefix cache (None: not in it), and what stands for its KV."""

    __slots__ = ("content", "key", "refs")

    def __init__(self) -> None:
        self.refs = 0
        self.key: bytes | None = None
        self.content = b""


class BlockPool:
    """`total` blocks. `allocated` counts those handed out since the start: what pushes cached ones out."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.allocated = 0
        self._cache: dict[bytes, Block] = {}
        self._idle: dict[Block, None] = {}  # cached and unreferenced, the next to be evicted first

    @property
    def room(self) -> int:
        """Blocks that can be allocated now, evicting what nothing refers to."""
        return self.total - self.used

    def match(self, keys: Sequence[bytes]) -> list[Block]:
        """The cached blocks of the longest leading part of `keys`; `take` them before the next allocation."""
        found = []
        for key in keys:
            block = self._cache.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def room_after(self, matched: Sequence[Block]) -> int:
        """Blocks that could be allocated once `matched` are taken."""
        return self.room - sum([not block.refs for block in matched])

    def take(self, blocks: Sequence[Block]) -> None:
        """Refer to blocks once more."""
        for block in blocks:
            if not block.refs:
                self._idle.pop(block, None)
                self.used += 1
            block.refs += 1

    def allocate(self, count: int) -> list[Block]:
        """Empty blocks, referred to once. Raises MemoryError when there is no room."""
        if count > self.room:
            raise MemoryError(f"{count} blocks wanted, {self.room} of {self.total} free")
        empty = self.total - self.used - len(self._idle)
        for _ in range(count - empty):
            self._evict(next(iter(self._idle)))
        blocks = [Block() for _ in range(count)]
        for block in blocks:
            block.refs = 1
        self.used += count
        self.allocated += count
        return blocks

    def fill(self, block: Block, key: bytes, content: bytes) -> None:
        """The block holds a full block's KV. It can be found by `key` unless another one can already."""
        block.content = content
        if self._cache.setdefault(key, block) is block:
            block.key = key

    def drop(self, blocks: Sequence[Block]) -> None:
        """Refer to blocks no more, once each; they are given in the sequence's order."""
        for block in reversed(blocks):
            block.refs -= 1
            if not block.refs:
                self.used -= 1
                if block.key is not None:
                    self._idle[block] = None

    def reset(self) -> None:
        """Forget all cached KV that nothing refers to."""
        for block in list(self._idle):
            self._evict(block)

    def _evict(self, block: Block) -> None:
        del self._idle[block]
        if block.key is not None:
            del self._cache[block.key]
            block.key = None

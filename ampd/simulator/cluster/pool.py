"""A worker's KV pool: blocks in use, and sessions' KV that nothing refers to but that can be found again.

One entry stands for all blocks of a session. Of the prefix cache the session unused for longest is evicted first, its tail first:
vLLM frees blocks in reverse and evicts in the order of freeing (vllm/v1/core/block_pool.py).
"""

from __future__ import annotations


class Entry:
    """KV of one session: `blocks` blocks, whose first `tokens` tokens can be reused. In use, or else cached."""

    __slots__ = ("blocks", "session", "tokens", "used")

    def __init__(self, session: int) -> None:
        self.session = session
        self.tokens = 0
        self.blocks = 0
        self.used = True


class Pool:
    """Blocks are counted, not named. `used` + `cached` never exceed `total`; `written` counts all blocks ever allocated."""

    __slots__ = ("_cache", "cached", "entries", "evicted", "size", "total", "used", "written")

    def __init__(self, tokens: int, block_size: int) -> None:
        self.size = block_size
        self.total = tokens // block_size
        self.used = 0
        self.cached = 0
        self.written = 0
        self.evicted = 0
        self.entries: dict[int, Entry] = {}
        self._cache: dict[int, Entry] = {}  # the next to be evicted first

    def held(self, session: int) -> int:
        """Leading tokens of a session that can be found here."""
        entry = self.entries.get(session)
        return 0 if entry is None else entry.tokens

    def lacks(self, session: int, tokens: int) -> int:
        """Blocks that must be given up before the session can have `tokens` tokens in use; not above 0 when they fit."""
        entry = self.entries.get(session)
        own = entry.blocks if entry is not None and entry.used else 0
        return self.used - own - (-tokens // self.size) - self.total

    def take(self, session: int, keep: int, tokens: int) -> Entry:
        """The session's entry in use: its first `keep` tokens (whole blocks) reused, with room for `tokens`. It must fit."""
        entry = self.entries.get(session)
        if entry is None:
            entry = self.entries[session] = Entry(session)
        elif not entry.used:
            del self._cache[session]
            self.cached -= entry.blocks
            self.used += entry.blocks
            entry.used = True
        self._cut(entry, keep // self.size)
        entry.tokens = keep
        wanted = -(-tokens // self.size)
        if wanted > entry.blocks:
            self.allocate(wanted - entry.blocks)
            entry.blocks = wanted
        return entry

    def allocate(self, blocks: int) -> None:
        """Put blocks to use, evicting what is cached. The caller has seen that they fit.

        (A reader may have taken some since, see `Pins.keep`: `used` is then over `total` until the batch makes room.)
        """
        self.used += blocks
        self.written += blocks
        over = min(self.used + self.cached - self.total, self.cached)
        if over > 0:
            self._evict(over)

    def rest(self, entry: Entry, tokens: int) -> None:
        """Nothing refers to the session's KV any more; its full blocks stay in the cache."""
        full = tokens // self.size
        self.used -= entry.blocks
        entry.blocks = full
        entry.tokens = full * self.size
        entry.used = False
        if full:
            self._cache[entry.session] = entry
            self.cached += full
        else:
            del self.entries[entry.session]

    def trim(self, session: int, tokens: int) -> None:
        """A session's history was rewritten from `tokens` on: what is held beyond cannot be found any more."""
        entry = self.entries.get(session)
        if entry is None or entry.tokens <= tokens:
            return
        full = tokens // self.size
        entry.tokens = full * self.size
        if entry.used:
            self._cut(entry, full)
        else:
            self.cached -= entry.blocks - full
            entry.blocks = full
            if not full:
                del self._cache[session], self.entries[session]

    def _cut(self, entry: Entry, blocks: int) -> None:
        if entry.blocks > blocks:
            self.used -= entry.blocks - blocks
            entry.blocks = blocks

    def _evict(self, blocks: int) -> None:
        while blocks > 0:
            entry = next(iter(self._cache.values()))
            gone = min(blocks, entry.blocks)
            entry.blocks -= gone
            entry.tokens = entry.blocks * self.size
            if not entry.blocks:
                del self._cache[entry.session], self.entries[entry.session]
            self.cached -= gone
            self.evicted += gone
            blocks -= gone

"""BlockGroup: the blocks of layers that share one block table, with pool and prefix index changed together.

Layers here see everything before them. Those with a sliding window: window.py.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Ints
from headrace.kv.pool import BlockPool
from headrace.kv.prefix import Listener, PrefixIndex

Rows = NDArray[np.intp]


class BlockGroup:
    """Blocks of one KV group. A block is cached in the pool exactly while it is in the index. Owner: PagedKV."""

    def __init__(self, num_blocks: int, group: int, table: Ints, listener: Listener | None = None) -> None:
        """Start empty; `table` is (max_rows, max_blocks) block ids, which PagedKV writes."""
        self.index = PrefixIndex(num_blocks, group, listener)
        self.pool = BlockPool(num_blocks, evicted=self.index.remove)
        self.table = table

    # --- which blocks a row needs; PagedKV counts `num_blocks` of a row by its tokens ---

    def max_blocks(self) -> int:
        """Count the blocks of the longest row that can live here alone."""
        return min(self.pool.num_blocks, int(self.table.shape[1]))

    def longest_hit(self, digests: Sequence[bytes], most: int) -> int:
        """Count the blocks, `most` at most, of the longest start of a sequence that a row can go on from."""
        return len(self.index.find(digests[:most]))

    def hit(self, digests: Sequence[bytes], count: int) -> list[int]:
        """Return the blocks that a row which goes on behind `count` blocks still reads: the last of them."""
        return self.index.find(digests[:count])

    def num_first(self, num_hit: int, num_blocks: int) -> int:
        """Count the new blocks that a row of num_blocks blocks needs at first, behind those it hit."""
        return num_blocks - num_hit

    def bind(self, row: int, num_hit: int, hits: Sequence[int], num_new: int) -> list[int]:
        """Hold these last ones of num_hit cached blocks for a row, and so many new ones; returns them in this order."""
        self.pool.share(hits)
        return [*hits, *self.pool.take_many(num_new)]

    def num_lacking(self, row: int, num_blocks: int, needed: int, num_tokens: int) -> int:
        """Count the blocks that a row of `num_blocks` blocks lacks to compute up to num_tokens, or `needed` blocks."""
        return needed - num_blocks

    def end(self, row: int, num_blocks: int) -> int:
        """Return the index at which a row's next block goes."""
        return num_blocks

    def leaving(self, row: int, scheduled: int) -> list[int]:
        """Return blocks that no query reads any more once `scheduled` tokens are computed, in their order."""
        return []

    def extend(self, row: int, leaving: Sequence[int], num_new: int) -> list[int]:
        """Give these leading blocks of a row back, tail first, and hold new ones for it, which are returned."""
        return self.pool.take_many(num_new)

    def has_room_for_each(self, rows: Rows, num_blocks: Ints) -> bool:
        """Tell whether `extend_each` can be done for these rows, which have so many blocks each."""
        return self.has_room((), len(rows))

    def extend_each(self, rows: Rows, scheduled: Ints) -> list[int]:
        """Hold a new block for each of these rows, in their order; scheduled: tokens of each row as for `leaving`."""
        return self.pool.take_many(len(rows))

    def blocks(self, row: int, num_blocks: int) -> list[int]:
        """List the blocks that a row holds, in their order."""
        held: list[int] = self.table[row, :num_blocks].tolist()
        return held

    def register(self, row: int, first: int, end: int, digests: Sequence[bytes]) -> None:
        """Cache the row's blocks from index `first` to `end`, as far as it holds them."""
        self.keep(self.table[row, first:end].tolist(), digests[first:end])

    # --- pool and index ---

    def has_room(self, hits: Sequence[int], num_new: int, leaving: Sequence[int] = ()) -> bool:
        """Tell whether so many new blocks can be held, once `leaving` ones are given back.

        Hits that are free now are no room for new blocks.
        """
        room = self.pool.num_free - sum(not self.pool.is_held(block) for block in hits)
        return num_new <= room or num_new <= room + sum(self.pool.is_held_once(block) for block in leaving)

    def keep(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Cache held blocks. Free blocks of the same content make way: one copy nobody uses is enough."""
        for twin in self.index.known(digests):
            if not self.pool.is_held(twin):
                self.unregister(twin)
        self.index.add(blocks, digests)
        self.pool.keep(blocks)

    def unregister(self, block: int) -> None:
        """Cache a block no longer."""
        self.index.remove((block,))
        self.pool.drop(block)

    def clear(self) -> None:
        """Cache nothing any more. Held blocks stay held."""
        for block, digest in enumerate(self.index.digests):
            if digest is not None:
                self.pool.drop(block)
        self.index.clear()

    def check_invariants(self, holders: Sequence[int]) -> None:
        """Raise AssertionError if pool and index contradict each other or `holders` (of each block, from 0 on)."""
        self.pool.check_invariants()
        self.index.check_invariants()
        assert self.pool.holders() == list(holders), "reference counts are not the number of rows that refer to a block"
        for block, digest in enumerate(self.index.digests):
            assert self.pool.is_cached(block) == (digest is not None), f"pool and index differ on block {block}"

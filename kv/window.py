"""WindowGroup: blocks of layers that see a sliding window. What has left the window is given back; a hit needs no more.

A row holds blocks for what its next steps read and write, not for its whole sequence: it gets them chunk by chunk, and
gives those back that lie behind the window. So it never holds more than layout.window_blocks says.
"""

from collections.abc import Sequence

import numpy as np

from headrace.core.columns import Ints
from headrace.kv.group import BlockGroup, Rows
from headrace.kv.layout import NULL_BLOCK, StepLimits, blocks_for, window_blocks
from headrace.kv.prefix import Listener


class WindowGroup(BlockGroup):
    """Blocks of one KV group with a window. Owner: PagedKV.

    Table entries of blocks that a row gave back stay, as a record of what it computed and hit; nothing reads them.
    """

    def __init__(
        self,
        num_blocks: int,
        group: int,
        table: Ints,
        window: int,
        block_size: int,
        limits: StepLimits,
        listener: Listener | None = None,
    ) -> None:
        """Start empty. window: tokens that a query sees, itself included."""
        super().__init__(num_blocks, group, table, listener)
        self._window, self._block_size, self._limits = window, block_size, limits
        self._first = np.zeros(len(table), np.int32)
        """By row, index of the first block that it holds."""
        self._end = np.zeros(len(table), np.int32)
        """By row, index behind the last one."""

    def max_blocks(self) -> int:
        """Count the blocks of the longest row that can live here alone: any, if the most that it holds fits."""
        if self.pool.num_blocks >= window_blocks(self._window, self._limits, self._block_size):
            return int(self.table.shape[1])
        return super().max_blocks()

    def longest_hit(self, digests: Sequence[bytes], most: int) -> int:
        """Count the blocks, `most` at most, of the longest start of a sequence that a row can go on from."""
        count = index = most
        while index > self._first_seen(count):
            index -= 1
            if digests[index] not in self.index:
                count = index
        return count

    def hit(self, digests: Sequence[bytes], count: int) -> list[int]:
        """Return the blocks that a row which goes on behind `count` blocks still reads: the last of them."""
        return self.index.find(digests[self._first_seen(count) : count])

    def num_first(self, num_hit: int, num_blocks: int) -> int:
        """Count the new blocks that a row of num_blocks blocks needs at first, behind those it hit: for any chunk."""
        first_chunk = num_hit * self._block_size + self._limits.max_chunk
        return min(num_blocks, self._room_for(first_chunk)) - num_hit

    def bind(self, row: int, num_hit: int, hits: Sequence[int], num_new: int) -> list[int]:
        """Hold these last ones of num_hit cached blocks for a row, and so many new ones; returns them in this order."""
        first = num_hit - len(hits)
        self.table[row, :first] = NULL_BLOCK
        self._first[row], self._end[row] = first, num_hit + num_new
        return super().bind(row, num_hit, hits, num_new)

    def num_lacking(self, row: int, num_blocks: int, needed: int, num_tokens: int) -> int:
        """Count the blocks that a row of `num_blocks` blocks lacks to compute up to num_tokens, or `needed` blocks."""
        if needed == num_blocks:  # a prompt goes on
            needed = min(needed, self._room_for(num_tokens))
        return max(0, needed - int(self._end[row]))

    def end(self, row: int, num_blocks: int) -> int:
        """Return the index at which a row's next block goes."""
        return int(self._end[row])

    def leaving(self, row: int, scheduled: int) -> list[int]:
        """Return blocks that no query reads any more once `scheduled` tokens are computed, in their order.

        Those that a hit of the row's last full block needs aren't among them, nor those to which it goes back when
        drafts are rejected.
        """
        num_full = max(0, scheduled - self._limits.max_rejected) // self._block_size
        blocks: list[int] = self.table[row, self._first[row] : self._first_seen(num_full)].tolist()
        return blocks

    def extend(self, row: int, leaving: Sequence[int], num_new: int) -> list[int]:
        """Give these leading blocks of a row back, tail first, and hold new ones for it, which are returned."""
        self.pool.give(leaving[::-1])
        self._first[row] += len(leaving)
        self._end[row] += num_new
        return self.pool.take_many(num_new)

    def has_room_for_each(self, rows: Rows, num_blocks: Ints) -> bool:
        """Tell whether `extend_each` can be done for these rows, which have so many blocks each.

        What leaves their windows isn't counted as room, and rows in the middle of a prompt aren't extended this way.
        """
        return bool((self._end[rows] == num_blocks).all()) and super().has_room_for_each(rows, num_blocks)

    def extend_each(self, rows: Rows, scheduled: Ints) -> list[int]:
        """Hold a new block for each of these rows, in their order; scheduled: tokens of each row as for `leaving`."""
        num_full = np.maximum(scheduled[rows] - self._limits.max_rejected, 0) // self._block_size
        seen = np.maximum(num_full * self._block_size - self._window + 1, 0) // self._block_size
        firsts = self._first[rows]
        blocks = []
        for row, first, end in zip(rows.tolist(), firsts.tolist(), seen.tolist(), strict=True):
            if end > first:
                self.pool.give(self.table[row, first:end][::-1].tolist())
            blocks.append(self.pool.take())
        self._first[rows] = np.maximum(firsts, seen)
        self._end[rows] += 1
        return blocks

    def blocks(self, row: int, num_blocks: int) -> list[int]:
        """List the blocks that a row holds, in their order."""
        held: list[int] = self.table[row, self._first[row] : self._end[row]].tolist()
        return held

    def register(self, row: int, first: int, end: int, digests: Sequence[bytes]) -> None:
        """Cache the row's blocks from index `first` to `end`, as far as it holds them."""
        super().register(row, max(first, int(self._first[row])), end, digests)

    def _first_seen(self, num_full: int) -> int:
        """Return the index of the first block that a query right behind so many full blocks sees."""
        return max(0, num_full * self._block_size - self._window + 1) // self._block_size

    def _room_for(self, num_tokens: int) -> int:
        """Count blocks for so many tokens and one more: the last token of a prompt may come without being asked for."""
        return blocks_for(num_tokens + 1, self._block_size)

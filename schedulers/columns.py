"""Columns: the numbers of all rows, one array per number. No decisions."""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Ints

Rows = NDArray[np.intp]
"""Row numbers. Numpy takes indices of this type in a fraction of the time it needs for int32."""

ONE = np.array(1, np.int32)
"""To add to a column: numpy takes a Python 1 in twice the time."""
TAIL = 256
"""New ids of a row that its tail holds before they go to its request, all at once. A power of two."""
MAX_STOPS = 8
"""Stop ids that are looked for in all rows at once; new tokens of a row with more are looked at one by one."""
NO_ID = -1
_IN_TAIL = np.array(TAIL - 1, np.int32)


class Columns:
    """int32 arrays by row. Of a row without a request only `due` means something: it is 0. Owner: TableScheduler."""

    def __init__(self, max_rows: int, block_size: int) -> None:
        self._block_size = block_size
        self.num_tokens = np.zeros(max_rows, np.int32)
        """Known tokens and placeholders."""
        self.num_computed = np.zeros(max_rows, np.int32)
        """Tokens whose K/V exist or are scheduled."""
        self.num_confirmed = np.zeros(max_rows, np.int32)
        """Tokens whose K/V were computed by steps that have returned."""
        self.num_known = np.zeros(max_rows, np.int32)
        """Tokens whose ids the core has, those in the tail included."""
        self.num_bound = np.zeros(max_rows, np.int32)
        """Known tokens when the row was bound."""
        self.room = np.zeros(max_rows, np.int32)
        """Tokens that the row's blocks hold."""
        self.limit = np.zeros(max_rows, np.int32)
        """Tokens of prompt and output at which nothing is left to sample."""
        self.due = np.zeros(max_rows, np.int32)
        """Known tokens from which on a new token of the row is looked at on its own; 0 is always."""
        self._stops = np.full((MAX_STOPS, max_rows), NO_ID, np.int32)
        self._num_stops = 1
        """Places of `_stops` that any row has used."""
        self._tails = np.zeros(max_rows * TAIL, np.int32)
        """A row's id at position p has place row * TAIL + p % TAIL."""
        self._tail_starts = np.arange(max_rows) * TAIL

    def bind(self, row: int, num_known: int, num_computed: int, limit: int, stop_ids: Sequence[int]) -> None:
        """Start a row that has blocks for what is known. Its new tokens are looked at one by one until `pass_on`."""
        self.num_tokens[row] = self.num_known[row] = self.num_bound[row] = num_known
        self.num_computed[row] = self.num_confirmed[row] = num_computed
        self.limit[row] = limit
        self.grow(row, num_known)
        self.due[row] = 0
        self._stops[:, row] = NO_ID
        if len(stop_ids) <= MAX_STOPS:
            self._stops[: len(stop_ids), row] = stop_ids
            self._num_stops = max(self._num_stops, len(stop_ids))

    def grow(self, row: int, num_tokens: int) -> None:
        """Note that a row has blocks for so many tokens."""
        self.room[row] = -(-num_tokens // self._block_size) * self._block_size

    def add_block(self, rows: Rows) -> Ints:
        """Note that each of these rows has a block more; returns their room."""
        room = self.room[rows] = self.room[rows] + np.int32(self._block_size)
        return room

    def pass_on(self, row: int) -> None:
        """Let new tokens of a row pass until its limit or the end of its tail; stop ids are looked for all the time."""
        self.due[row] = min(int(self.limit[row]) - 1, int(self.num_known[row]) | (TAIL - 1))

    def stops(self, rows: Rows) -> Ints:
        """Return the stop ids of these rows, (most stop ids that a row has, num_rows), padded with NO_ID."""
        return self._stops[: self._num_stops, rows]

    def append(self, rows: Rows, num_known: Ints, token_ids: Ints) -> None:
        """Add a token to each of these rows, which know `num_known` before it."""
        self._tails[self._tail_starts[rows] + (num_known & _IN_TAIL)] = token_ids
        self.num_known[rows] = num_known + ONE

    def flush(self, row: int, ids: "array[int]") -> None:
        """Move the tail of a row to `ids`, the known ids of its request."""
        count = int(self.num_known[row]) - len(ids)
        if count:
            start = row * TAIL + len(ids) % TAIL
            ids.frombytes(self._tails[start : start + count].tobytes())

"""Lane: the rows that decode. They take one token each, step after step, until something changes."""

import numpy as np

from headrace.core.columns import Ints
from headrace.schedulers.columns import ONE, Columns, Rows


class Lane:
    """Rows with one token to compute, in the order of their admission. Owner: TableScheduler.

    While a lane is in use, num_computed and num_tokens of its rows are old in the columns; `store` brings them up to
    date.
    """

    def __init__(
        self,
        columns: Columns,
        rows: Rows,
        behind: list[int],
        is_for_one_step: bool = False,
        num_drafting: int = 0,
    ) -> None:
        """Take these rows; `behind` are rows to schedule after them, the first `num_drafting` of which decode too."""
        self.rows = rows
        self.row_bytes = rows.astype("<i4").tobytes()
        self.behind = behind
        self.num_drafting = num_drafting
        self.ends: Ints = columns.num_computed[rows]
        """Tokens whose K/V exist or are scheduled. Replaced, never changed: steps keep it."""
        self.stops = columns.stops(rows)
        self.has_prompts = bool(np.count_nonzero(self.ends < columns.num_bound[rows]))
        """The next step computes the last token of a prompt."""
        self._columns = columns
        self._room: Ints = columns.room[rows]
        is_short = is_for_one_step or self.has_prompts or not len(rows)
        self._steps_left = 1 if is_short else int((columns.limit[rows] - self.ends).min()) - 1

    def advance(self) -> bool:
        """Schedule a token of each row. False: the lane is not to be used again."""
        self.ends = self.ends + ONE
        self._steps_left -= 1
        return self._steps_left > 0

    def full(self, count: int) -> Rows:
        """Find which of the first `count` rows lack room for their next token."""
        is_full = self.ends[:count] >= self._room[:count]
        return is_full.nonzero()[0] if np.count_nonzero(is_full) else _NONE

    def add_block(self, full: Rows) -> None:
        """Note that these of its rows have a block more."""
        self._room[full] = self._columns.add_block(self.rows[full])

    def store(self) -> None:
        """Bring the columns up to date."""
        self._columns.num_computed[self.rows] = self.ends
        self._columns.num_tokens[self.rows] = self.ends + ONE


_NONE: Rows = np.zeros(0, np.intp)

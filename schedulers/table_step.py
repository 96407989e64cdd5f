"""TableStep: a step of the table scheduler: rows of a lane, one token each, then chunks of other rows."""

from typing import NamedTuple

import numpy as np

from headrace.core.columns import Ints, pack_ints
from headrace.core.messages import BindRow, RunStep
from headrace.schedulers.columns import Rows
from headrace.schedulers.lane import Lane
from headrace.schedulers.pace import reads_of
from headrace.schedulers.step import Step

ONE_TOKEN = pack_ints([1])
_NO_ROWS: Rows = np.zeros(0, np.intp)
_NO_ENDS: Ints = np.zeros(0, np.int32)


class Chunk(NamedTuple):
    """A row of a step that isn't of its lane."""

    num_tokens: int
    end: int
    """Tokens of the request that are computed after the step."""
    samples: bool
    num_drafts: int
    """Of the tokens, those that are room for drafts."""
    bind: BindRow | None

    @property
    def num_placeholders(self) -> int:
        """Most tokens that it may give."""
        return self.samples + self.num_drafts


class TableStep(Step):
    """A step: `rows` take one token each and sample, then come `chunks`, by row."""

    __slots__ = ("chunks", "ends", "lane", "row_bytes", "rows")

    def __init__(self, number: int, limit: int) -> None:
        super().__init__(number, limit, budget=limit)
        self.lane: Lane | None = None
        """Whose rows these are, all of them."""
        self.rows = _NO_ROWS
        self.ends = _NO_ENDS
        """Tokens of the request that are computed after the step, by row."""
        self.row_bytes = b""
        """Of `rows`, once the step is complete."""
        self.chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.rows) + len(self.chunks)

    def reads(self) -> int:
        """Count the K/V that its queries see, of all rows."""
        return self.num_reads + int(self.ends.sum())

    def take_lane(self, lane: Lane) -> None:
        """Take a token of each row of a lane."""
        self.lane, self.rows, self.ends = lane, lane.rows, lane.ends
        self.budget -= len(lane.rows)

    def remove(self, row: int) -> None:
        """Take a row out again, if it is in."""
        if chunk := self.chunks.pop(row, None):
            self.budget += chunk.num_tokens
            self.num_reads -= reads_of(chunk.end - chunk.num_tokens, chunk.num_tokens)
        elif self.has(row):
            stays = self.rows != row
            self.lane, self.rows, self.ends = None, self.rows[stays], self.ends[stays]
            self.budget += 1

    def has(self, row: int) -> bool:
        """Tell whether a row is in."""
        return row in self.chunks or bool(np.count_nonzero(self.rows == row))

    def all_rows(self) -> list[int]:
        """Return its rows in the order of the message."""
        return [*self.rows.tolist(), *self.chunks]

    def message(self, tables: bytes, reset: bool) -> RunStep:
        """Complete the step, and return it as the runner gets it."""
        self.row_bytes = rows = self.lane.row_bytes if self.lane else pack_ints(self.rows)
        num_tokens = ONE_TOKEN * len(self.rows)
        bound: tuple[BindRow, ...] = ()
        if self.chunks:
            chunks = self.chunks.values()
            rows += pack_ints(list(self.chunks))
            num_tokens += pack_ints([chunk.num_tokens for chunk in chunks])
            bound = tuple(chunk.bind for chunk in chunks if chunk.bind)
        return RunStep(self.number, rows, num_tokens, bound, tables, reset)

"""TableStep: a step of the table scheduler, as columns."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headrace.core.columns import Ints, pack_ints
from headrace.core.messages import BindRow, RunStep
from headrace.schedulers.columns import Rows
from headrace.schedulers.lane import Lane
from headrace.schedulers.step import Step

ONE_TOKEN = pack_ints([1])
_NO_ROWS: Rows = np.zeros(0, np.intp)
_NO_INTS: Ints = np.zeros(0, np.int32)


class Chunk(NamedTuple):
    """A row of a step that isn't in its lane."""

    num_tokens: int
    end: int
    """Tokens of the request that are computed after the step."""
    samples: bool
    bind: BindRow | None


@dataclass(slots=True, eq=False)
class TableStep(Step):
    """A step as columns: first the rows of a lane, one token each, then chunks."""

    lane: Lane | None = None
    """Whose rows these are, all of them."""
    rows: Rows = field(default_factory=lambda: _NO_ROWS)
    ends: Ints = field(default_factory=lambda: _NO_INTS)
    """Tokens that are computed after the step, by row."""
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """By row; `rows` and `ends` get them when the step is complete."""
    row_bytes: bytes = b""
    num_lane_rows: int = 0

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.rows) + len(self.chunks)

    def take_lane(self, lane: Lane) -> None:
        """Take a token of each row of a lane."""
        self.lane, self.rows, self.ends = lane, lane.rows, lane.ends
        self.budget -= len(lane.rows)

    def remove(self, row: int) -> None:
        """Take a row out again, if it is in."""
        if chunk := self.chunks.pop(row, None):
            self.budget += chunk.num_tokens
        elif self.has(row):
            stays = self.rows != row
            self.lane, self.rows, self.ends = None, self.rows[stays], self.ends[stays]
            self.budget += 1

    def has(self, row: int) -> bool:
        """Tell whether a row is in."""
        return row in self.chunks or bool(np.count_nonzero(self.rows == row))

    def samples(self, place: int) -> bool:
        """Tell whether the row at this place of the complete step samples a token."""
        return place < self.num_lane_rows or self.chunks[int(self.rows[place])].samples

    def message(self, tables: bytes, reset: bool) -> RunStep:
        """Complete the step, and return it as the runner gets it."""
        self.num_lane_rows = len(self.rows)
        num_tokens = ONE_TOKEN * len(self.rows)
        bound: tuple[BindRow, ...] = ()
        if self.chunks:
            chunks = self.chunks.values()
            self.rows = np.concatenate((self.rows, np.fromiter(self.chunks, np.intp)))
            self.ends = np.concatenate((self.ends, np.array([chunk.end for chunk in chunks], np.int32)))
            num_tokens += pack_ints([chunk.num_tokens for chunk in chunks])
            bound = tuple(chunk.bind for chunk in chunks if chunk.bind)
            self.lane = None
        self.row_bytes = self.lane.row_bytes if self.lane else pack_ints(self.rows)
        return RunStep(self.number, self.row_bytes, num_tokens, bound, tables, reset)

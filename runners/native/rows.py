"""The persistent batch in the native library: a step's rows from their ids to their new tokens, in one call."""

import ctypes

import numpy as np

from headrace.core.columns import Floats, Ints
from headrace.runners.batch import WorkerState
from headrace.runners.native import library as native
from headrace.runners.native.library import Library, address
from headrace.runners.native.sampling import PROBLEMS, NativeSampler
from headrace.runners.sampler import Advanced

_SAMPLED = 0
"""Of hr_outcome: lower ones need no token, higher ones are problems."""


class NativeRows:
    """Rows of one WorkerState, whose arrays the library reads and writes where they lie. Owner: Session.

    For rows without log probabilities and logits processors; what else a step needs is done in Python, by worker.py.
    """

    def __init__(self, library: Library, team: int, engine: int, state: WorkerState, sampler: NativeSampler) -> None:
        self._library, self._sampler = library, sampler
        self.state = state
        columns = native.Rows(
            max_rows=len(state.num_ids),
            num_groups=state.num_groups,
            block_size=state.block_size,
            token_stride=state.token_ids.shape[1],
            table_stride=state.tables.shape[2],
            token_ids=address(state.token_ids),
            num_ids=address(state.num_ids),
            num_prompt=address(state.num_prompt),
            num_computed=address(state.num_computed),
            tables=address(state.tables),
            sampling=sampler.columns_of(state, np.zeros(0, dtype=np.int32)),
        )
        self._rows = library.call("hr_rows_new", team, engine, ctypes.byref(columns))
        self._token_ids: Ints = np.zeros(len(state.num_ids), dtype=np.int32)
        self._outcomes: Ints = np.zeros(len(state.num_ids), dtype=np.int32)
        self._answers = address(self._token_ids), address(self._outcomes)

    def advance(self, rows: Ints, asked: Ints, logits: Floats) -> Advanced:
        """Run a step, as worker.Advance says; logits: room for (len(rows), vocab_size)."""
        count = len(rows)
        self._sampler.columns_of(self.state, rows)
        self._library.call(
            "hr_advance", self._rows, address(rows), address(asked), count, address(logits), *self._answers
        )
        outcomes = self._outcomes[:count]
        is_new = outcomes == _SAMPLED
        failed = {}
        if outcomes.max() > _SAMPLED:
            failed = {int(rows[i]): PROBLEMS[int(outcomes[i])] for i in (outcomes > _SAMPLED).nonzero()[0]}
        return Advanced(is_new.astype(np.int32), self._token_ids[:count][is_new], failed)

    def free(self) -> None:
        """Give the library's part back."""
        self._library.free("hr_rows_free", self._rows)

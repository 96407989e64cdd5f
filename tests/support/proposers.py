"""A proposer that knows what `kvhash` will say, and is wrong now and then."""

from collections.abc import Sequence

import numpy as np

from headrace.core.columns import Ints
from headrace.core.extensions import RowState
from headrace.core.messages import RunnerReady
from headrace.runners.kvhash import KVHashOptions, reference


class Guesser:
    """Proposes the right continuation, often with one wrong token, at times shorter than asked."""

    def __init__(self, options: KVHashOptions) -> None:
        self._options = options

    def load(self, facts: RunnerReady) -> None:
        """Need nothing."""

    def bound(self, row: int) -> None:
        """Remember nothing."""

    def propose(self, state: RowState, rows: Ints, counts: Ints) -> Sequence[Ints]:
        """Guess."""
        return [
            self._guess(state.token_ids[row, : state.num_ids[row]], count)
            for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Hold nothing."""

    def _guess(self, ids: Ints, count: int) -> Ints:
        chance = int(ids[-1])
        count = max(0, count - chance % 7 // 5)
        drafts = self._right(ids, count)
        if count and chance % 3:
            drafts[chance % count] ^= 1
        return drafts

    def _right(self, ids: Ints, count: int) -> Ints:
        options = self._options
        right = reference(
            ids.tolist(), count, options.vocab_size, num_groups=options.num_groups, windows=options.windows
        )
        return np.array(right, dtype=np.int32)

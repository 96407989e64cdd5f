"""Proposer `ngram`: a sequence's last tokens, found earlier in it, are likely to go on as they did then.

Source: Saxena 2023, "Prompt lookup decoding". Costs microseconds per row and no memory.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from headrace.core.columns import Ints
from headrace.core.errors import ConfigError
from headrace.core.extensions import RowState
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext


class NgramOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.proposer] of ngram."""

    prompt_lookup_max: int = 4
    """Tokens that are compared at most: the longer the match, the better the guess."""
    prompt_lookup_min: int = 2
    """Tokens that must be the same; fewer are no match."""

    def __post_init__(self) -> None:
        """Check the limits. Raises ConfigError."""
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}:"
                " the one must be at least 1 and at most the other"
            )


def build(context: RunnerContext, options: NgramOptions) -> "NgramProposer":
    """Build the proposer."""
    return NgramProposer(options)


class NgramProposer:
    """A Proposer without any state."""

    def __init__(self, options: NgramOptions) -> None:
        self._least, self._most = options.prompt_lookup_min, options.prompt_lookup_max

    def load(self, facts: RunnerReady) -> None:
        """Need nothing."""

    def bound(self, row: int) -> None:
        """Remember nothing."""

    def propose(self, state: RowState, rows: Ints, counts: Ints) -> Sequence[Ints]:
        """Return what followed the same tokens earlier in each row."""
        known = (state.token_ids[row, : state.num_ids[row]] for row in rows.tolist())
        return [
            what_followed(ids, self._least, self._most, count)
            for ids, count in zip(known, counts.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Hold nothing."""


def what_followed(ids: Ints, least: int, most: int, count: int) -> Ints:
    """Return up to `count` ids that followed an earlier place with the same last ids.

    Of the places that share the most ids, at least `least` and at most `most`, it is the latest that is followed by
    `count` ids, else the earliest. Nothing where there is none.
    """
    ends = np.flatnonzero(ids[:-1] == ids[-1]) + 1
    length = 1
    while length < most and len(ends):
        longer = ends[ends > length]
        longer = longer[ids[longer - length - 1] == ids[-length - 1]] if length < len(ids) else longer[:0]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if not len(ends) or length < least:
        return ids[:0]
    full = ends[ends + count <= len(ids)]
    start = int(full[-1]) if len(full) else int(ends[0])
    return ids[start : start + count]

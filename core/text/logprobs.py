"""Columns of log probabilities become what users read: one tuple of candidates per position."""

from collections.abc import Callable, Container
from itertools import accumulate

from headrace.core.columns import floats, ints
from headrace.core.messages import Logprobs, PositionLogprobs, TokenLogprob

Entries = dict[tuple[int, int], PositionLogprobs]
"""By row and position."""


def read_logprobs(columns: Logprobs | None, rows: Container[int], token_text: Callable[[int], str]) -> Entries:
    """Return the entries of these rows; others are skipped."""
    if columns is None:
        return {}
    token_ids, values = ints(columns.token_ids).tolist(), floats(columns.logprobs).tolist()
    widths = ints(columns.widths).tolist()
    places = zip(
        ints(columns.rows).tolist(),
        ints(columns.positions).tolist(),
        ints(columns.ranks).tolist(),
        accumulate(widths, initial=0),
        widths,
        strict=False,  # accumulate gives one start more
    )
    entries: Entries = {}
    for row, position, rank, start, width in places:
        if row in rows:
            ranks = [rank, *range(1, width)]
            candidates = zip(token_ids[start : start + width], values[start : start + width], ranks, strict=True)
            entries[row, position] = tuple(
                TokenLogprob(token_id, value, place, token_text(token_id)) for token_id, value, place in candidates
            )
    return entries

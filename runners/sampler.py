"""Chooses the next token of each row: the numpy sampler, reference for all runners.

Order of operations, vLLM's: log probabilities are taken from the logits as the model gave them (logprobs.py); allowed
ids, bad words, stop ids before min_tokens, logit bias, logits processors of plugins, penalties (logits.py);
temperature, min-p, top-k, top-p; then the inverse of the cumulative distribution in vocabulary order at the row's own
random number (philox.py).

"Likeliest" means the highest logit (for top-p without top-k: the highest weight), of equal ones the lowest id.
A row's token depends on nothing but its own logits, ids and sampling parameters: rows are computed one by one, or by
operations that treat each element alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.errors import RequestFailed
from headrace.core.messages import Logprobs, RowSampling
from headrace.runners.batch import GREEDY_BELOW, NO_LOGPROBS, WorkerState
from headrace.runners.logprobs import LogprobColumns, likeliest
from headrace.runners.philox import uniforms

_MANY = 1024
"""Tokens of which top-p hopes that they are enough."""
_CHUNK = 256


@dataclass(slots=True, frozen=True)
class Sampled:
    """What sampling gave."""

    rows: Ints
    """Those that got a token, in the order of the logits."""
    token_ids: Ints
    """One for each of `rows`."""
    failed: dict[int, str]
    """The other rows, and what is wrong with their logits."""
    logprobs: Logprobs | None


@dataclass(slots=True, frozen=True)
class Advanced:
    """What a whole step of rows gave."""

    num_new: Ints
    """(R,) tokens that each row got: 1, or 0."""
    token_ids: Ints
    """Theirs, in the order of the rows."""
    failed: dict[int, str]
    """Rows whose logits are of no use, and what is wrong with them."""


_NONE: Ints = np.zeros(0, dtype=np.int32)
NOTHING_SAMPLED = Sampled(_NONE, _NONE, {}, None)


@np.errstate(over="ignore")  # far below the highest logit everything rounds to minus infinity
def sample(logits: Floats, state: WorkerState, rows: Ints) -> Sampled:
    """Choose one token for each of these rows of the batch; changes neither logits nor state.

    logits: (S, vocab_size), of the rows in this order. A row whose logits hold NaN or plus infinity, or nothing but
    minus infinity, before or after its masks, gets no token: it fails.
    """
    best = logits.argmax(axis=1)  # NaN counts as highest
    highest = logits[np.arange(len(rows)), best]
    token_ids = best.astype(np.int32)
    is_sound = np.isfinite(highest)
    failed = {int(rows[i]): _problem(highest[i]) for i in np.flatnonzero(~is_sound)}
    special = np.flatnonzero(is_sound & ~state.is_plain[rows])
    for i, problem in choose_each(logits, state, rows, special, token_ids).items():
        is_sound[i], failed[int(rows[i])] = False, problem
    logprobs = _logprobs(logits, state, rows, token_ids, is_sound)
    return Sampled(rows[is_sound], token_ids[is_sound], failed, logprobs)


def choose_each(
    logits: Floats, state: WorkerState, rows: Ints, places: NDArray[np.intp], token_ids: Ints
) -> dict[int, str]:
    """Choose one by one for the rows at these places, whose logits are sound, and write into token_ids (S,).

    Returns what went wrong, by place.
    """
    if not len(places):
        return {}
    problems: dict[int, str] = {}
    numbers = uniforms(state.seeds[rows[places]], state.num_ids[rows[places]])
    for i, number in zip(places.tolist(), numbers, strict=True):
        row = int(rows[i])
        try:
            token_ids[i] = choose(_adjusted(logits[i], state, row), state.sampling[row], number)
        except RequestFailed as error:
            problems[i] = str(error)
    return problems


def _adjusted(logits: Floats, state: WorkerState, row: int) -> Floats:
    """Apply the row's adjustments. Raises RequestFailed if they leave nothing, or where a processor does."""
    adjustments = state.adjustments[row]
    if adjustments is None:
        return logits
    adjusted = adjustments.apply(logits, state.token_ids[row, : state.num_ids[row]], int(state.num_prompt[row]))
    if not np.isfinite(adjusted.max()):
        raise RequestFailed("allowed_token_ids, bad_words and min_tokens leave no token to sample")
    return adjusted


def _logprobs(
    logits: Floats, state: WorkerState, rows: Ints, token_ids: Ints, is_sound: NDArray[np.bool_]
) -> Logprobs | None:
    columns, wanted = LogprobColumns(), state.num_logprobs[rows]
    for i in np.flatnonzero(is_sound & (wanted != NO_LOGPROBS)):
        row = int(rows[i])
        columns.add(row, int(state.num_ids[row]), logits[i], int(token_ids[i]), int(wanted[i]))
    return columns.pack()


def _problem(highest: np.float32) -> str:
    if np.isnan(highest):
        return "the model's logits hold NaN"
    return "the model's logits hold infinity" if highest > 0 else "the model's logits are all minus infinity"


def choose(logits: Floats, sampling: RowSampling, number: float) -> int:
    """Return the token of one row: greedy, or by a random number in [0, 1).

    logits: (vocab_size,), adjusted, without NaN, the highest one finite.
    """
    if sampling.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    if 0 < sampling.top_k < len(logits):
        ids = likeliest(logits, sampling.top_k)
        kept = _cut(_weights(logits[ids], logits[ids[0]], sampling), sampling.top_p)
        order = ids[: len(kept)].argsort()
        return int(ids[order][_invert(kept[order], number)])
    weights = _weights(logits, logits.max(), sampling)
    if sampling.top_p < 1:
        weights = _nucleus(weights, sampling.top_p)
    return _invert(weights, number)


def _weights(logits: Floats, highest: np.float32, sampling: RowSampling) -> Floats:
    """Return probabilities as shares of the likeliest one's, after temperature and min-p."""
    weights: Floats = np.exp((logits - highest) / np.float32(sampling.temperature))
    if sampling.min_p > 0:
        weights *= weights >= np.float32(sampling.min_p)
    return weights


def _cut(weights: Floats, top_p: float) -> Floats:
    """Keep the shortest start whose sum reaches top_p of the whole; weights are sorted, the highest first."""
    if top_p >= 1:
        return weights
    sums = np.cumsum(weights, dtype=np.float64)
    return weights[: int(sums.searchsorted(top_p * sums[-1])) + 1]


def _nucleus(weights: Floats, top_p: float) -> Floats:
    """Set to zero all but the smallest set of likeliest tokens that reaches top_p of the whole.

    Values are sorted, never ids, and all of them only if the first few don't suffice.
    """
    wanted = top_p * weights.sum(dtype=np.float64)
    highest = weights if len(weights) <= _MANY else np.partition(weights, -_MANY)[-_MANY:]
    if highest.sum(dtype=np.float64) < wanted:
        highest = weights
    highest = np.sort(highest)[::-1]
    sums = np.cumsum(highest, dtype=np.float64)
    num_kept = min(int(sums.searchsorted(wanted)) + 1, len(highest))
    lowest = highest[num_kept - 1]
    is_kept = weights > lowest
    equals = np.flatnonzero(weights == lowest)
    is_kept[equals[: num_kept - np.count_nonzero(is_kept)]] = True
    weights[~is_kept] = 0
    return weights


def _invert(weights: Floats, number: float) -> int:
    """Return the first index at which the sum of weights exceeds this share of their whole.

    Sums are taken in double precision, by chunks: running sums over a whole vocabulary take four times as long. A chunk
    is always found: `number` is at most 1 - 2**-53, so its product with the sum rounds to less than the sum.
    """
    exact = weights.astype(np.float64)
    ends = np.add.reduceat(exact, np.arange(0, len(exact), _CHUNK)).cumsum()
    wanted = number * ends[-1]
    chunk = int(ends.searchsorted(wanted, side="right"))
    part = exact[chunk * _CHUNK : (chunk + 1) * _CHUNK]
    sums = part.cumsum() + (ends[chunk - 1] if chunk else 0.0)
    last = int(part.nonzero()[0][-1])  # where rounding leaves the chunk's own sums short
    return chunk * _CHUNK + min(int(sums.searchsorted(wanted, side="right")), last)

"""Runner `kvhash`: the next token is a hash of the ids and positions read back through the block table.

A wrong, stale or swapped block, or a wrong position, changes the output, so scheduler and KV tests are exact without a
model. `next_logits` and `reference` say what is right without any engine.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Batch, Runner
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext
from headrace.kv.layout import slot_mapping
from headrace.runners.modelless import modelless_facts
from headrace.runners.worker import make_worker

DEFAULT_VOCAB = 512
Hashes = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_LOGIT_RANGE = 16.0


class KVHashOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.runner] of kvhash."""

    vocab_size: int = DEFAULT_VOCAB
    num_groups: int = 1
    """KV groups, each with storage and block tables of its own; all of them enter the hash."""
    windows: tuple[int, ...] = ()
    """Sliding windows of the first groups in tokens; 0, as for all others, is full attention."""

    def __post_init__(self) -> None:
        """Check the limits. Raises ConfigError."""
        for name, least in (("vocab_size", 2), ("num_groups", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least {least}")
        if len(self.windows) > self.num_groups or min(self.windows, default=0) < 0:
            raise ConfigError(
                f"windows are {self.windows}, must be 0 or more tokens for at most {self.num_groups} groups"
            )


def build(context: RunnerContext, options: KVHashOptions) -> Runner:
    """Build the runner."""
    return make_worker(KVHashModel(context.config, options), context)


class KVHashModel:
    """A StepModel whose K/V of a token are its id and position. Owner: the compute thread of its worker."""

    def __init__(self, config: EngineConfig, options: KVHashOptions) -> None:
        self._config = config
        self._options = options
        self._windows = _windows(options.num_groups, options.windows)
        self._batch: Batch | None = None
        self._token_ids: list[Ints] = []
        """Per group: (num_blocks + 1) * block_size; -1 where nothing was written."""
        self._positions: list[Ints] = []

    def load(self) -> RunnerReady:
        """Set up the storage."""
        facts = modelless_facts(self._config, self._options.vocab_size, self._windows)
        for group in facts.groups:
            size = (group.num_blocks + 1) * self._config.block_size
            self._token_ids.append(np.full(size, -1, dtype=np.int32))
            self._positions.append(np.full(size, -1, dtype=np.int32))
        return facts

    def forward(self, batch: Batch) -> None:
        """Write all tokens of the batch at their slots. Raises IndexError where a block is missing or out of range."""
        for group, slots in enumerate(batch.slots):
            if slots.min() < self._config.block_size:
                raise IndexError(f"a token of group {group} has no block: its slot lies in the null block")
            self._token_ids[group][slots] = batch.token_ids
            self._positions[group][slots] = batch.positions
        self._batch = batch

    def logits(self, indices: Ints) -> Floats:
        """Read what each of these tokens sees through its row's block tables, and hash it."""
        batch = self._batch
        assert batch is not None
        rows = np.searchsorted(batch.starts, indices, side="right") - 1
        ends = batch.positions[indices] + np.int32(1)
        sums = [self._sum(group, rows.astype(np.int32), ends, window) for group, window in enumerate(self._windows)]
        return _logits_of(sums, self._options.vocab_size)

    def _sum(self, group: int, rows: Ints, ends: Ints, window: int | None) -> Hashes:
        """Add up, for each of these rows, the hashes of the tokens before `ends` that a group's queries see."""
        assert self._batch is not None
        lengths: Ints = ends if window is None else np.minimum(ends, np.int32(window))
        starts = np.cumsum(lengths) - lengths
        places = (np.arange(lengths.sum()) + np.repeat(ends - lengths - starts, lengths)).astype(np.int32)
        slots = slot_mapping(self._batch.tables[group], np.repeat(rows, lengths), places, self._config.block_size)
        items = _hash_tokens(self._token_ids[group][slots], self._positions[group][slots], places)
        sums: Hashes = np.add.reduceat(items, starts)
        return sums

    def close(self) -> None:
        """Drop the storage."""
        self._token_ids.clear()
        self._positions.clear()
        self._batch = None


# --- what is right ----------------------------------------------------------------------------------------------------


def next_logits(
    token_ids: Sequence[int], vocab_size: int = DEFAULT_VOCAB, num_groups: int = 1, windows: Sequence[int] = ()
) -> Floats:
    """Return the (vocab_size,) logits that follow these ids."""
    places = np.arange(len(token_ids))
    totals = _totals(_hash_tokens(np.array(token_ids), places, places))
    logits: Floats = _logits_of(_seen(totals, len(token_ids), _windows(num_groups, windows)), vocab_size)[0]
    return logits


def reference(
    prompt: Sequence[int],
    num_tokens: int,
    vocab_size: int = DEFAULT_VOCAB,
    num_groups: int = 1,
    windows: Sequence[int] = (),
) -> list[int]:
    """Return the greedy continuation of a prompt."""
    places = np.arange(len(prompt) + num_tokens)
    totals = np.zeros(len(places) + 1, np.uint64)
    totals[: len(prompt) + 1] = _totals(_hash_tokens(np.array(prompt), places[: len(prompt)], places[: len(prompt)]))
    continuation: list[int] = []
    for end in range(len(prompt), len(places)):
        sums = _seen(totals, end, _windows(num_groups, windows))
        continuation.append(int(_logits_of(sums, vocab_size).argmax()))
        place = places[end : end + 1]
        totals[end + 1 : end + 2] = totals[end : end + 1] + _hash_tokens(np.array(continuation[-1:]), place, place)
    return continuation


def _windows(num_groups: int, windows: Sequence[int]) -> list[int | None]:
    """Return each group's window; None is full attention."""
    return [window or None for window in windows] + [None] * (num_groups - len(windows))


def _totals(hashes: Hashes) -> Hashes:
    """Add up the hashes (n,) of the first 0 to n tokens."""
    return np.concatenate([np.zeros(1, np.uint64), hashes.cumsum()])


def _seen(totals: Hashes, end: int, windows: Sequence[int | None]) -> list[Hashes]:
    """Return for each group the sum (1,) over what the last of `end` tokens sees."""
    firsts = [0 if window is None else max(0, end - window) for window in windows]
    return [totals[end : end + 1] - totals[first : first + 1] for first in firsts]


def _hash_tokens(token_ids: NDArray[np.integer], positions: NDArray[np.integer], places: NDArray[np.integer]) -> Hashes:
    """Hash tokens one by one: what is stored, and where in the sequence it was found. All (n,)."""
    stored = token_ids.astype(np.uint64) << np.uint64(32) | positions.astype(np.uint32)
    return _mix(_mix(stored) + _STEP * (places.astype(np.uint64) + np.uint64(1)))


def _logits_of(sums: Sequence[Hashes], vocab_size: int) -> Floats:
    """Turn each context's sums of hashes, one (n,) array per group, into (n, vocab_size) logits in [-8, 8)."""
    contexts = np.zeros_like(sums[0])
    for sum_of_group in sums:
        contexts = _mix(contexts + _STEP + sum_of_group)
    bits = _mix(contexts[:, None] + _STEP * np.arange(1, vocab_size + 1, dtype=np.uint64))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(_LOGIT_RANGE / 2**24) - np.float32(_LOGIT_RANGE / 2)


def _mix(values: Hashes) -> Hashes:
    """Scramble 64-bit values one by one: the finaliser of SplitMix64 (Steele et al. 2014)."""
    values = (values ^ values >> _SHIFTS[0]) * _FACTORS[0]
    values = (values ^ values >> _SHIFTS[1]) * _FACTORS[1]
    return values ^ values >> _SHIFTS[2]

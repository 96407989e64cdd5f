"""The sampler in the native library: same tokens as runners/sampler.py, without a Python loop over sampling rows.

Rows with logits processors, which are Python code, are sampled once more by runners/sampler.py, whose word is last.
A row's sampling parameters are written down once, when the row is bound; what changes each step are its ids.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints, pack_floats, pack_ints
from headrace.core.messages import Logprobs, RowSampling
from headrace.runners.batch import NO_LOGPROBS, WorkerState
from headrace.runners.logits import Adjustments, completing
from headrace.runners.native.library import Library, address
from headrace.runners.sampler import Sampled, choose_each

_POINTER = np.uint64
ROW_SAMPLING = np.dtype(
    [
        ("temperature", np.float32),
        ("min_p", np.float32),
        ("top_p", np.float64),
        ("top_k", np.int32),
        ("has_changes", np.int32),
        ("seed", np.uint64),
        ("token_ids", _POINTER),
        ("num_ids", np.int32),
        ("num_prompt", np.int32),
        ("allowed", _POINTER),
        ("num_allowed", np.int64),
        ("masked", _POINTER),
        ("num_masked", np.int64),
        ("stops", _POINTER),
        ("num_stops", np.int64),
        ("bias_ids", _POINTER),
        ("bias", _POINTER),
        ("num_bias", np.int64),
        ("min_tokens", np.int32),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
    ],
    align=True,
)
"""struct hr_row_sampling."""

PROBLEMS = {
    1: "the model's logits hold NaN",
    2: "the model's logits hold infinity",
    3: "the model's logits are all minus infinity",
    4: "allowed_token_ids, bad_words and min_tokens leave no token to sample",
}
"""By hr_outcome."""


class NativeSampler:
    """Samples rows of one persistent batch. Owner: NativeModel, on the compute thread."""

    def __init__(self, library: Library, team: int, vocab: int) -> None:
        self._library, self._team, self._vocab = library, team, vocab
        self._state: WorkerState | None = None
        """Whose rows the columns are about."""
        self._columns: NDArray[Any] = np.zeros(0, dtype=ROW_SAMPLING)
        self._columns_at: int | None = None
        """Where they lie; asking costs 40 us, since numpy describes all fields on the way."""
        self._num_ids: Ints = np.zeros(0, dtype=np.int32)
        self._num_prompt: Ints = np.zeros(0, dtype=np.int32)
        """Those of them that change from step to step."""
        self._bound: list[RowSampling | None] = []
        """What the columns of each row say."""
        self._kept: list[Any] = []
        """What they point to, by row."""
        self._with_phrases: dict[int, Adjustments] = {}
        """Rows whose masks depend on what was just generated."""

    def sample(self, logits: Floats, state: WorkerState, rows: Ints) -> Sampled:
        """Choose one token for each of these rows; as runners/sampler.py's function of this name."""
        columns_at = self.columns_of(state, rows)
        self._num_ids[rows], self._num_prompt[rows] = state.num_ids[rows], state.num_prompt[rows]
        token_ids, outcomes = np.zeros(len(rows), dtype=np.int32), np.empty(len(rows), dtype=np.int32)
        rows = np.ascontiguousarray(rows)
        self._library.call(
            "hr_sample",
            self._team,
            address(logits),
            self._vocab,
            columns_at,
            address(rows),
            len(rows),
            address(token_ids),
            address(outcomes),
        )
        if not (outcomes.any() or state.have_extras(rows)):
            return Sampled(rows, token_ids, {}, None)
        is_sound = outcomes == 0
        failed = {int(rows[i]): PROBLEMS[int(outcomes[i])] for i in (~is_sound).nonzero()[0]}
        processed = (is_sound & state.has_processors[rows]).nonzero()[0]
        for i, problem in choose_each(logits, state, rows, processed, token_ids).items():
            is_sound[i], failed[int(rows[i])] = False, problem
        logprobs = self._logprobs(logits, state, rows, token_ids, is_sound)
        return Sampled(rows[is_sound], token_ids[is_sound], failed, logprobs)

    def columns_of(self, state: WorkerState, rows: Ints) -> int | None:
        """Write down what is new about these rows, but for their ids' numbers; returns where the columns lie."""
        if self._state is not state:
            self._state = state
            self._columns = np.zeros(len(state.sampling), dtype=ROW_SAMPLING)
            self._columns_at = address(self._columns)
            self._num_ids, self._num_prompt = self._columns["num_ids"], self._columns["num_prompt"]
            self._columns["token_ids"] = [address(ids) for ids in state.token_ids]
            self._bound, self._kept = [None] * len(state.sampling), [None] * len(state.sampling)
        for row in rows.tolist():
            if self._bound[row] is not state.sampling[row]:
                self._bind(row, state.sampling[row], state.adjustments[row])
        for row in self._with_phrases.keys() & set(rows.tolist()) if self._with_phrases else ():
            output = state.token_ids[row, state.num_prompt[row] : state.num_ids[row]]
            adjustments = self._with_phrases[row]
            masked = np.concatenate((adjustments.bad_ids, completing(adjustments.bad_phrases, output)))
            self._point(row, "masked", masked)
        return self._columns_at

    def _bind(self, row: int, sampling: RowSampling, adjustments: Adjustments | None) -> None:
        self._bound[row], self._kept[row] = sampling, {}
        self._with_phrases.pop(row, None)
        column = self._columns[row]
        for name in ("temperature", "min_p", "top_p", "top_k"):
            column[name] = getattr(sampling, name)
        column["seed"] = sampling.seed % 2**64
        column["has_changes"] = adjustments is not None
        if adjustments is not None:
            self._bind_changes(row, adjustments)

    def _bind_changes(self, row: int, adjustments: Adjustments) -> None:
        column = self._columns[row]
        column["min_tokens"] = adjustments.min_tokens
        column["repetition"], column["presence"] = adjustments.repetition, adjustments.presence
        column["frequency"] = adjustments.frequency
        self._point(row, "masked", adjustments.bad_ids)
        self._point(row, "stops", adjustments.stop_ids)
        self._point(row, "bias_ids", adjustments.bias_ids)
        self._point(row, "bias", adjustments.bias)
        self._point(row, "allowed", adjustments.allowed)
        if adjustments.bad_phrases:
            self._with_phrases[row] = adjustments

    def _point(self, row: int, name: str, values: NDArray[Any] | None) -> None:
        """Let a column of a row point to an array, and say how long it is; -1: there is none."""
        if values is not None and values.dtype != np.float32:
            values = np.ascontiguousarray(values, dtype=np.int64)
        self._kept[row][name] = values
        self._columns[row][name] = address(values) or 0
        if name != "bias_ids":  # as many as `bias`
            self._columns[row][f"num_{name}"] = -1 if values is None else len(values)

    def _logprobs(
        self, logits: Floats, state: WorkerState, rows: Ints, token_ids: Ints, is_sound: NDArray[np.bool_]
    ) -> Logprobs | None:
        wanted = np.where(is_sound, state.num_logprobs[rows], np.int32(NO_LOGPROBS))
        most = int(wanted.max(initial=NO_LOGPROBS))
        if most == NO_LOGPROBS:
            return None
        widths, ranks = np.zeros(len(rows), dtype=np.int32), np.zeros(len(rows), dtype=np.int32)
        ids = np.empty((len(rows), 1 + most), dtype=np.int32)
        values = np.empty((len(rows), 1 + most), dtype=np.float32)
        inputs = (address(logits), self._vocab, address(token_ids), address(wanted), len(rows), most)
        self._library.call(
            "hr_report", self._team, *inputs, address(widths), address(ranks), address(ids), address(values)
        )
        is_reported = wanted != NO_LOGPROBS
        is_there = np.arange(1 + most) < widths[:, None]
        return Logprobs(
            rows=pack_ints(rows[is_reported]),
            positions=pack_ints(state.num_ids[rows[is_reported]]),
            ranks=pack_ints(ranks[is_reported]),
            widths=pack_ints(widths[is_reported]),
            token_ids=pack_ints(ids[is_there]),
            logprobs=pack_floats(values[is_there]),
        )

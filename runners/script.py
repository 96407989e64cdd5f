"""Runner `script`: every request emits the same given tokens, and faults happen where they are ordered.

Only the logits are made up: rows, masks, penalties, sampling and failures are those of every other runner.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.core.columns import Floats, Ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Batch, Runner
from headrace.core.messages import RunnerReady, RunStep
from headrace.core.providers import RunnerContext
from headrace.runners.batch import only
from headrace.runners.modelless import modelless_facts
from headrace.runners.worker import StandaloneWorker

SPACING = 50.0
"""Logits between one choice and the next: sampling at any usual temperature takes the best one that isn't masked."""


FaultKind = Literal["nan", "inf", "minus_inf", "nothing", "raise"]


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that goes wrong; it hits what matches all of `step`, `index` and `prompt` that are given."""

    kind: FaultKind
    """nan, inf: one of the row's logits is that; minus_inf: all of them are; nothing: the row gives no token, without
    an error; raise: the model raises, and the step fails."""
    step: int | None = None
    """RunStep.step."""
    index: int | None = None
    """The request's token that would be sampled, counted from 0; without it, raise hits prefill chunks too."""
    prompt: int | None = None
    """First id of the request's prompt."""
    times: int = 1
    """Hits, after which the fault is spent."""


class ScriptOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.runner] of script."""

    tokens: list[int | list[int]] = []
    """What each request emits at its i-th generated token; a list is choices, best first, for when some are masked."""
    filler: int = 1000
    """Emitted after the end of `tokens`, and wherever all choices are masked."""
    vocab_size: int = 49152
    faults: list[Fault] = []

    def __post_init__(self) -> None:
        """Check that all ids are in the vocabulary. Raises ConfigError."""
        for i, choices in enumerate(self.tokens):
            for token_id in choices if isinstance(choices, list) else [choices]:
                self._check_id(f"tokens[{i}]", token_id)
        self._check_id("filler", self.filler)

    def _check_id(self, field: str, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise ConfigError(f"{field} is {token_id}, must be 0 to {self.vocab_size - 1} (vocab_size)")


def build(context: RunnerContext, options: ScriptOptions) -> Runner:
    """Build the runner."""
    return ScriptWorker(ScriptModel(context.config, options), context)


class ScriptWorker(StandaloneWorker):
    """A worker that tells its model which token of its request each row is at."""

    def __init__(self, model: "ScriptModel", context: RunnerContext) -> None:
        super().__init__(
            model,
            context.max_rows,
            context.config.block_size,
            context.clock,
            build_processor=context.build_processor,
            proposer=context.proposer,
        )
        self._script = model

    def prepare(self, step: RunStep) -> Batch:
        """Apply a step; rows hit by the fault `nothing` don't sample."""
        batch = super().prepare(step)
        state, rows = self.state, batch.rows
        silent = self._script.begin(step.step, batch, state.num_prompt[rows], state.token_ids[rows, 0])
        return only(batch, batch.samples[~np.isin(batch.samples, silent)]) if silent else batch


class ScriptModel:
    """A StepModel that wants the script's next token at every position. Owner: the compute thread of its worker."""

    def __init__(self, config: EngineConfig, options: ScriptOptions) -> None:
        self._config = config
        self._options = options
        self._choices, self._scores = _choice_columns(options.tokens, options.filler)
        self._hits_left = [fault.times for fault in options.faults]
        self._batch: Batch | None = None
        self._num_prompt: Ints = np.zeros(0, dtype=np.int32)
        self._faults: dict[int, Fault] = {}
        """By row of the batch."""
        self._logits: Floats = np.zeros((0, options.vocab_size), dtype=np.float32)
        """Zero but for what the last call set: clearing all of it would take longer than the rest of a step."""
        self._last_choices: Ints = self._choices[:0]
        self._last_faults: list[int] = []

    def load(self) -> RunnerReady:
        """Return made-up facts."""
        return modelless_facts(self._config, self._options.vocab_size)

    def begin(self, step: int, batch: Batch, num_prompt: Ints, first_ids: Ints) -> list[int]:
        """Take what logits depend on beside the batch; num_prompt and first_ids are (R,), of the batch's rows.

        Returns the rows of the batch that must not sample.
        """
        self._batch, self._num_prompt, self._faults = batch, num_prompt, {}
        for number, fault in enumerate(self._options.faults):
            if self._hits_left[number] and fault.step in (None, step):
                for i in _rows_hit(fault, batch, num_prompt, first_ids)[: self._hits_left[number]]:
                    self._faults[i] = fault
                    self._hits_left[number] -= 1
        return [i for i, fault in self._faults.items() if fault.kind == "nothing"]

    def forward(self, batch: Batch) -> None:
        """Raise where a fault says so."""
        if any(fault.kind == "raise" for fault in self._faults.values()):
            raise RuntimeError("the script says so")

    def logits(self, indices: Ints) -> Floats:
        """Return logits that prefer each position's choices, best first.

        The array is used again at the next call: callers may read it until then, and must not change it.
        """
        batch = self._batch
        assert batch is not None
        rows = np.searchsorted(batch.starts, indices, side="right") - 1
        generated = batch.positions[indices] + 1 - self._num_prompt[rows]
        end = len(self._choices) - 1
        at = np.where((generated >= 0) & (generated < end), generated, end)
        logits = self._cleared(len(indices))
        logits[np.arange(len(at))[:, None], self._choices[at]] = self._scores[at]
        self._last_choices = self._choices[at]
        for i, row in enumerate(rows.tolist() if self._faults else ()):
            fault = self._faults.get(row)
            if fault is not None and fault.index in (None, generated[i]):
                self._spoil(i, fault.kind)
        return logits

    def close(self) -> None:
        """Drop the logits."""
        self._logits = self._logits[:0]

    def _cleared(self, num_rows: int) -> Floats:
        if num_rows > len(self._logits):
            self._logits = np.zeros((num_rows, self._options.vocab_size), dtype=np.float32)
        else:
            self._logits[np.arange(len(self._last_choices))[:, None], self._last_choices] = 0
            self._logits[self._last_faults] = 0
        self._last_faults = []
        return self._logits[:num_rows]

    def _spoil(self, i: int, kind: FaultKind) -> None:
        self._last_faults.append(i)
        if kind == "minus_inf":
            self._logits[i] = -np.inf
        else:
            self._logits[i, self._options.filler] = np.nan if kind == "nan" else np.inf


def _choice_columns(tokens: Sequence[int | list[int]], filler: int) -> tuple[Ints, Floats]:
    """Return ids and logits of each generated index's choices, (len(tokens) + 1, width); the last row is the filler's.

    Each row ends with the filler, which is repeated where others have more choices.
    """
    rows = [[*dict.fromkeys([*(choices if isinstance(choices, list) else [choices]), filler])] for choices in tokens]
    rows.append([filler])
    width = max(map(len, rows))
    ids = [row + row[-1:] * (width - len(row)) for row in rows]
    scores = [[SPACING * (len(row) - min(i, len(row) - 1)) for i in range(width)] for row in rows]
    return np.array(ids, dtype=np.int32), np.array(scores, dtype=np.float32)


def _rows_hit(fault: Fault, batch: Batch, num_prompt: Ints, first_ids: Ints) -> list[int]:
    """Find the rows of the batch that match a fault, apart from its step."""
    hits_all = fault.kind == "raise" and fault.index is None
    rows = np.arange(len(batch.rows)) if hits_all else batch.samples
    if fault.index is not None:
        last = (batch.context_lens - num_prompt)[rows]
        first = last if batch.num_drafts is None else last - batch.num_drafts[rows]
        rows = rows[(first <= fault.index) & (fault.index <= last)]
    if fault.prompt is not None:
        rows = rows[first_ids[rows] == fault.prompt]
    found: list[int] = rows.tolist()
    return found[:1] if fault.kind == "raise" else found

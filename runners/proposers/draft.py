"""Proposer `draft`: a second, smaller model of the same vocabulary runs ahead by a few tokens.

Its K/V lie in storage of its own, in the blocks that the runner's block tables name: no second manager is needed. It
samples with each row's own parameters and random numbers, so that where it agrees with the runner's model, it does so
for sampled tokens too.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.core.columns import Ints, pack_ints
from headrace.core.errors import ConfigError
from headrace.core.extensions import RowState
from headrace.core.interfaces import Batch, StepModel
from headrace.core.messages import BindRow, RunnerReady
from headrace.core.providers import RunnerContext
from headrace.runners.auto import build_model
from headrace.runners.batch import WorkerState
from headrace.runners.sampler import sample


class DraftOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.proposer] of draft."""

    model: str
    """Folder, GGUF file, catalogue name or hub id of a model with the same vocabulary."""
    runner: Literal["auto", "torch", "native"] = "auto"
    """What computes it."""


def build(context: RunnerContext, options: DraftOptions) -> "DraftProposer":
    """Build the proposer."""
    return DraftProposer(context, options)


class DraftProposer:
    """A Proposer with a model. Owner: the compute thread of the runner's worker."""

    def __init__(self, context: RunnerContext, options: DraftOptions) -> None:
        self._context, self._options = context, options
        self._model: StepModel | None = None
        self._state: WorkerState | None = None
        self._is_new = np.ones(context.max_rows, dtype=np.bool_)
        """Rows whose request the model has not seen."""
        self._group = 0
        """Of the runner's block tables: its blocks are ours."""

    def load(self, facts: RunnerReady) -> None:
        """Load the model with storage for as many blocks as the runner's. Raises ModelError, ConfigError."""
        self._group = _full_group(facts)
        config = replace(
            self._context.config, num_kv_blocks=facts.groups[self._group].num_blocks, max_model_len=facts.max_model_len
        )
        self._model = self._build(replace(self._context, config=config))
        ready = self._model.load()
        self._check(ready, facts)
        self._state = WorkerState(ready, self._context.max_rows, config.block_size, self._context.build_processor)

    def bound(self, row: int) -> None:
        """Forget what was known of a row."""
        self._is_new[row] = True

    def propose(self, state: RowState, rows: Ints, counts: Ints) -> Sequence[Ints]:
        """Let the model catch up with each row, and go on by so many tokens."""
        own, starts = self._state, state.num_ids[rows]
        assert own is not None
        for row in rows.tolist():
            self._follow(own, state, row)
        ends = starts + counts
        while len(behind := np.flatnonzero(own.num_ids[rows] < ends)):
            stuck = self._advance(own, rows[behind])
            ends[np.isin(rows, stuck)] = 0
        return [
            own.token_ids[row, start : own.num_ids[row]].copy()
            for row, start in zip(rows.tolist(), starts.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Drop the model; idempotent."""
        if self._model is not None:
            self._model.close()
        self._model = None

    def _build(self, context: RunnerContext) -> StepModel:
        from headrace.core.model_files.resolve import resolve_model

        return build_model(replace(context, model=resolve_model(self._options.model, None)), self._options.runner)

    def _check(self, ready: RunnerReady, facts: RunnerReady) -> None:
        name = self._options.model
        if ready.vocab_size != facts.vocab_size:
            raise ConfigError(
                f"options.proposer.model is {name!r} with {ready.vocab_size} tokens, the model has {facts.vocab_size}:"
                " they must have the same vocabulary"
            )
        if ready.max_model_len < facts.max_model_len:
            raise ConfigError(
                f"options.proposer.model is {name!r} with contexts of {ready.max_model_len} tokens, the model's are"
                f" {facts.max_model_len}; set engine.max_model_len to {ready.max_model_len}, or choose another one"
            )
        if len(ready.groups) != 1 or ready.groups[0].window is not None:
            raise ConfigError(f"options.proposer.model is {name!r}, which has sliding windows; choose one without")

    def _follow(self, own: WorkerState, state: RowState, row: int) -> None:
        """Take over what is known of a row: K/V behind the last right draft are void."""
        known = int(state.num_ids[row])
        if self._is_new[row]:
            ids, sampling = state.token_ids[row, :known], state.sampling[row]
            own.bind(BindRow(row, pack_ints(ids), int(state.num_prompt[row]), 0, sampling))
            self._is_new[row] = False
        own.token_ids[row, :known] = state.token_ids[row, :known]
        own.num_ids[row] = known
        own.num_computed[row] = min(int(own.num_computed[row]), known - 1)
        own.tables[0, row] = state.tables[self._group, row]

    def _advance(self, own: WorkerState, rows: Ints) -> list[int]:
        """Compute what these rows lack, as much as a step may; returns those whose logits are of no use."""
        left = own.num_ids[rows] - own.num_computed[rows]
        before = np.cumsum(left) - left
        asked = np.minimum(left, self._context.config.max_num_batched_tokens - before)
        batch = own.batch(rows[asked > 0], asked[asked > 0])
        return self._sample(own, batch)

    def _sample(self, own: WorkerState, batch: Batch) -> list[int]:
        assert self._model is not None
        self._model.forward(batch)
        if not len(batch.samples):
            return []
        sampled = sample(self._model.logits(batch.logit_places), own, batch.rows[batch.samples])
        own.append(sampled.rows, sampled.token_ids)
        return list(sampled.failed)


def _full_group(facts: RunnerReady) -> int:
    """Find the KV group that keeps all blocks of a row."""
    for number, group in enumerate(facts.groups):
        if group.window is None:
            return number
    raise ConfigError("use.proposer is 'draft', which needs a model with full attention in some layers; use 'ngram'")

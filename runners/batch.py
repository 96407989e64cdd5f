"""The persistent batch: what a runner remembers of each row, and how a step's rows become one flat batch."""

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.core.columns import Ints, ints
from headrace.core.extensions import ProcessorBuilder, no_processors
from headrace.core.interfaces import Batch
from headrace.core.messages import BindRow, RowSampling, RunnerReady, RunStep
from headrace.kv.layout import NULL_BLOCK, blocks_for, slot_mapping
from headrace.runners.logits import Adjustments
from headrace.runners.processors import build_processors

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy (vLLM's rule): dividing by them would overflow."""
NO_LOGPROBS = -1
_SEED_RANGE = 2**64
_UNBOUND = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


class WorkerState:
    """Columns of all rows. Owner: the worker's compute thread.

    A row's `num_ids` token ids are known, the K/V of the first `num_computed` of them are written; a row samples when
    the two meet. A row that failed, or whose sampled token never came, has nothing to compute until it is bound again.
    """

    def __init__(
        self, facts: RunnerReady, max_rows: int, block_size: int, build_processor: ProcessorBuilder = no_processors
    ) -> None:
        max_blocks = blocks_for(facts.max_model_len + 1, block_size)
        self.block_size = block_size
        self._vocab_size, self._build_processor = facts.vocab_size, build_processor
        self.num_groups = len(facts.groups)
        self.token_ids: Ints = np.zeros((max_rows, facts.max_model_len + 1), dtype=np.int32)
        """One more than the longest sequence: the token sampled at its end."""
        self.tables: Ints = np.full((self.num_groups, max_rows, max_blocks), NULL_BLOCK, dtype=np.int32)
        self.num_ids: Ints = np.zeros(max_rows, dtype=np.int32)
        self.num_computed: Ints = np.zeros(max_rows, dtype=np.int32)
        self.num_prompt: Ints = np.zeros(max_rows, dtype=np.int32)
        self.sampling: list[RowSampling] = [_UNBOUND] * max_rows
        self.adjustments: list[Adjustments | None] = [None] * max_rows
        self.seeds: NDArray[np.uint64] = np.zeros(max_rows, dtype=np.uint64)
        self.is_plain: NDArray[np.bool_] = np.ones(max_rows, dtype=np.bool_)
        """Greedy without adjustments: the highest logit is the token."""
        self.has_processors: NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        """Python code changes the logits: the token is chosen by sampler.py."""
        self.num_logprobs: Ints = np.full(max_rows, NO_LOGPROBS, dtype=np.int32)
        self.num_prompt_logprobs: Ints = np.full(max_rows, NO_LOGPROBS, dtype=np.int32)
        self.with_extras: set[int] = set()
        """Rows that want log probabilities or have processors: where a step has none of them, nobody looks further."""
        self._order: Ints = np.arange(max_rows + 1, dtype=np.int32)
        self._order.flags.writeable = False  # batches have views of it

    def apply(self, step: RunStep) -> Batch:
        """Take in what the step changes and return the flat batch of its rows, without drafts."""
        self.change(step)
        return self.batch(ints(step.rows), ints(step.num_tokens))

    def change(self, step: RunStep) -> None:
        """Take in what the step changes about rows."""
        if step.reset:
            self.num_ids[:] = self.num_computed[:] = 0
            self.tables[:] = NULL_BLOCK
        for bind in step.bound:
            self.bind(bind)
        if step.tables:
            groups, rows, indices, blocks = ints(step.tables).reshape(-1, 4).T
            self.tables[groups, rows, indices] = blocks  # of equal places the last one stays

    def room_for_drafts(self, rows: Ints, asked: Ints) -> Ints:
        """Count the tokens that each of these rows is asked for beyond those it has; 0 for a row that has none."""
        num_ids = self.num_ids[rows]
        num_left = num_ids - self.num_computed[rows]
        room = np.minimum(asked - num_left, self.token_ids.shape[1] - 1 - num_ids)
        return np.where(num_left > 0, np.maximum(room, 0), np.int32(0))

    def put_drafts(self, row: int, token_ids: Ints) -> None:
        """Write drafts behind a row's known tokens; they aren't known."""
        end = int(self.num_ids[row])
        self.token_ids[row, end : end + len(token_ids)] = token_ids

    def settle(self, rows: Ints) -> None:
        """Count the K/V of these rows' known tokens, but the last, as computed: that is as far as drafts were right."""
        self.num_computed[rows] = self.num_ids[rows] - 1

    def append(self, rows: Ints, token_ids: Ints) -> None:
        """Add one sampled token to each of these rows."""
        self.token_ids[rows, self.num_ids[rows]] = token_ids
        self.num_ids[rows] += 1

    def fail(self, row: int) -> None:
        """Leave this row nothing to compute until it is bound again."""
        self.num_ids[row] = self.num_computed[row]

    def count(self, among: Ints, rows: Ints) -> Ints:
        """Count how often each of the rows `among` is one of `rows`."""
        counts: Ints = np.bincount(rows, minlength=len(self.num_ids)).astype(np.int32)[among]
        return counts

    def bind(self, bind: BindRow) -> None:
        """Give a row a new request."""
        row, sampling, token_ids = bind.row, bind.sampling, ints(bind.token_ids)
        self.token_ids[row, : len(token_ids)] = token_ids
        self.tables[:, row] = NULL_BLOCK
        self.num_ids[row] = len(token_ids)
        self.num_computed[row] = bind.num_computed
        self.num_prompt[row] = bind.num_prompt
        self.sampling[row] = sampling
        processors = build_processors(sampling, self._vocab_size, self._build_processor)
        self.adjustments[row] = Adjustments.of(sampling, processors)
        self.has_processors[row] = bool(processors)
        self.seeds[row] = sampling.seed % _SEED_RANGE
        self.is_plain[row] = sampling.temperature < GREEDY_BELOW and self.adjustments[row] is None
        self.num_logprobs[row] = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        self.num_prompt_logprobs[row] = NO_LOGPROBS if sampling.prompt_logprobs is None else sampling.prompt_logprobs
        has_extras = bool(processors) or sampling.logprobs is not None or sampling.prompt_logprobs is not None
        (self.with_extras.add if has_extras else self.with_extras.discard)(row)

    def have_extras(self, rows: Ints) -> bool:
        """Tell whether any of these rows is one of with_extras."""
        return not self.with_extras.isdisjoint(rows.tolist())

    def batch(self, rows: Ints, asked: Ints, num_drafts: Ints | None = None) -> Batch:
        """Return the flat batch of these rows, in this order, its known tokens counted as computed.

        A row that has fewer tokens than asked gives what it has; one that has none is left out. Of a row's tokens, the
        last `num_drafts` (R,) are drafts (put_drafts).
        """
        begins, ends = self.num_computed[rows], self.num_ids[rows]
        if num_drafts is not None:
            ends = ends + num_drafts
        counts = np.minimum(asked, ends - begins)
        if not counts.all():
            has_any = counts > 0
            rows, begins, ends, counts = rows[has_any], begins[has_any], ends[has_any], counts[has_any]
            num_drafts = None if num_drafts is None else num_drafts[has_any]
        context_lens = begins + counts
        num_rows, num_tokens = len(rows), int(counts.sum())
        row_of, token_rows, positions = self._order[:num_rows], rows, begins
        starts = self._order[: num_rows + 1]
        if num_tokens != num_rows:  # not all rows decode
            starts = np.zeros(num_rows + 1, dtype=np.int32)
            np.cumsum(counts, out=starts[1:])
            row_of = np.repeat(row_of, counts)
            token_rows = rows[row_of]
            positions = np.arange(num_tokens, dtype=np.int32) + (begins - starts[:-1])[row_of]
        self.num_computed[rows] = context_lens if num_drafts is None else context_lens - num_drafts
        samples = np.flatnonzero(context_lens == ends).astype(np.int32)
        width = blocks_for(int(context_lens.max(initial=0)), self.block_size)
        tables = [self.tables[group, :, :width][rows] for group in range(self.num_groups)]
        return Batch(
            rows=rows,
            token_ids=self.token_ids[token_rows, positions],
            positions=positions,
            starts=starts,
            context_lens=context_lens,
            slots=[slot_mapping(table, row_of, positions, self.block_size) for table in tables],
            tables=tables,
            samples=samples,
            logit_places=_logit_places(starts, samples, num_drafts),
            num_drafts=num_drafts,
        )


def only(batch: Batch, samples: Ints) -> Batch:
    """Return the batch with no other rows sampling than these, (S,) indices into its rows."""
    return replace(batch, samples=samples, logit_places=_logit_places(batch.starts, samples, batch.num_drafts))


def _logit_places(starts: Ints, samples: Ints, num_drafts: Ints | None) -> Ints:
    """Find where logits are needed: Batch.logit_places."""
    last = starts[samples + 1] - 1
    if num_drafts is None:
        return last
    counts = num_drafts[samples] + 1
    ends = np.cumsum(counts, dtype=np.int32)
    return np.repeat(last - ends + 1, counts) + np.arange(counts.sum(), dtype=np.int32)

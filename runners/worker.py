"""Runs a model in the order of the steps: the persistent batch, the model, the sampler, on one thread.

Not here: what the model is (a StepModel), and runners that have none (sim.py).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from headrace.core.columns import Ints, ints, pack_ints
from headrace.core.errors import EngineClosed, RequestFailed, describe
from headrace.core.extensions import ProcessorBuilder, Proposer, no_processors
from headrace.core.interfaces import Batch, StepHandle, StepModel
from headrace.core.messages import RowFailure, RunnerReady, RunStep, StepDone
from headrace.core.providers import Clock, RunnerContext
from headrace.runners.batch import WorkerState, only
from headrace.runners.drafts import Sampler, propose, sample_rows
from headrace.runners.fail_stop import FailStop, closed
from headrace.runners.logprobs import prompt_logprobs
from headrace.runners.sampler import NOTHING_SAMPLED, Advanced, Sampled, sample

CLOSE_TIMEOUT_S = 5.0
"""How long close() waits for a step that is being computed."""


Advance = Callable[[WorkerState, Ints, Ints], Advanced]
"""A model's own way through a whole step, without drafts, of rows that have no extras (WorkerState.with_extras).

Computes up to `asked` (R,) tokens of each of `rows` (R,), samples those at their end and appends their tokens to the
state, with the same results as forward(), logits() and the sampler.
"""


def make_worker(
    model: StepModel, context: RunnerContext, sampler: Sampler = sample, advance: Advance | None = None
) -> "StandaloneWorker":
    """Build the worker that runs this model: the one place where runners of a model get theirs."""
    return StandaloneWorker(
        model,
        context.max_rows,
        context.config.block_size,
        context.clock,
        sampler=sampler,
        advance=advance,
        build_processor=context.build_processor,
        proposer=context.proposer,
    )


@dataclass(slots=True)
class _Job:
    """Work for the compute thread."""

    work: Callable[[], Any]
    future: "Future[Any]"
    wake: Callable[[], None]


class StandaloneWorker:
    """A Runner on one device: one compute thread owns model and rows, and takes steps from a queue.

    The thread starts at load() or the first submit(). After close() no `wake` is called any more.
    """

    def __init__(
        self,
        model: StepModel,
        max_rows: int,
        block_size: int,
        clock: Clock = time.monotonic,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
        sampler: Sampler = sample,
        advance: Advance | None = None,
        build_processor: ProcessorBuilder = no_processors,
        proposer: Proposer | None = None,
    ) -> None:
        self.model = model
        self.proposer = proposer
        self._build_processor = build_processor
        self._sampler = sampler
        self._advance = advance if proposer is None else None
        self._max_rows = max_rows
        self._block_size = block_size
        self._close_timeout_s = close_timeout_s
        self._state: WorkerState | None = None
        self._fail_stop = FailStop(clock)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # for _thread and _is_closed
        self._waking = threading.Lock()  # held while `wake` is called, which the next submit() must not wait for

    @property
    def state(self) -> WorkerState:
        """The rows; load() makes them."""
        assert self._state is not None, "a runner is loaded before it gets steps"
        return self._state

    # --- Runner ---

    def load(self) -> RunnerReady:
        """Load the model on the compute thread and make the rows. Blocks. Raises ModelError, ConfigError."""
        facts: RunnerReady = self._post(self._load, wake=_nobody).result()
        return facts

    def submit(self, step: RunStep, wake: Callable[[], None]) -> StepHandle:
        """Queue a step and return at once; `wake` is called on the compute thread when it is done."""
        try:
            return self._post(lambda: self.execute(step), wake)
        except EngineClosed:
            future: Future[StepDone] = Future()
            future.set_result(closed(step.step))
            return future

    def close(self) -> None:
        """Release everything; idempotent. Waits for a step that is being computed, but not for ever."""
        with self._lock, self._waking:
            was_closed, self._is_closed = self._is_closed, True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(self._close_timeout_s)
        elif not was_closed:
            self._release()

    # --- one step ---

    def execute(self, step: RunStep) -> StepDone:
        """Compute a step now, on the caller's thread. Raises nothing: a failure is StepDone.error."""
        if self._is_closed:
            return closed(step.step)
        return self._fail_stop.run(step, self._compute)

    def prepare(self, step: RunStep) -> Batch:
        """Make the batch of a step that the rows know of. A runner built on this one may let fewer rows sample."""
        rows, asked = ints(step.rows), ints(step.num_tokens)
        if self.proposer is None:
            return self.state.batch(rows, asked)
        for bind in step.bound:
            self.proposer.bound(bind.row)
        return self.state.batch(rows, asked, propose(self.proposer, self.state, rows, asked))

    def _compute(self, step: RunStep) -> StepDone:
        self.state.change(step)
        if self._advance is not None and not self.state.have_extras(ints(step.rows)):
            return self._compute_whole(step, self._advance)
        batch = self.prepare(step)
        if not len(batch.rows):
            return StepDone(step.step, num_new=bytes(len(step.rows)))
        self.model.forward(batch)
        prompts, unsound = prompt_logprobs(self.model, batch, self.state)
        failed = [self._fail(row, "logits of its prompt hold NaN or infinity") for row in unsound]
        sampled = self._sample(batch, unsound)
        failed += [self._fail(row, problem) for row, problem in sampled.failed.items()]
        rows = ints(step.rows)
        return StepDone(
            step=step.step,
            num_new=pack_ints(self.state.count(rows, sampled.rows)),
            token_ids=pack_ints(sampled.token_ids),
            num_drafted=b"" if batch.num_drafts is None else pack_ints(_spread(batch, rows)),
            failed=tuple(failed),
            logprobs=sampled.logprobs,
            prompt_logprobs=prompts,
        )

    def _compute_whole(self, step: RunStep, advance: Advance) -> StepDone:
        made = advance(self.state, ints(step.rows), ints(step.num_tokens))
        return StepDone(
            step=step.step,
            num_new=pack_ints(made.num_new),
            token_ids=pack_ints(made.token_ids),
            failed=tuple(self._fail(row, problem) for row, problem in made.failed.items()),
        )

    def _sample(self, batch: Batch, unsound: set[int]) -> Sampled:
        if unsound:
            is_sound = ~np.isin(batch.rows[batch.samples], list(unsound))
            batch = only(batch, batch.samples[is_sound])
        if not len(batch.samples):
            return NOTHING_SAMPLED
        return sample_rows(self._sampler, self.model.logits(batch.logit_places), self.state, batch)

    def _fail(self, row: int, problem: str) -> RowFailure:
        position = int(self.state.num_computed[row]) - 1
        self.state.fail(row)
        return RowFailure(row, describe(RequestFailed(f"failed at position {position}: {problem}")))

    # --- the compute thread ---

    def _load(self) -> RunnerReady:
        facts = self.model.load()
        if self.proposer is not None:
            self.proposer.load(facts)
        self._state = WorkerState(facts, self._max_rows, self._block_size, self._build_processor)
        return facts

    def _post(self, work: Callable[[], Any], wake: Callable[[], None]) -> "Future[Any]":
        job = _Job(work, Future(), wake)
        with self._lock:
            if self._is_closed:
                raise EngineClosed("the runner was closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="headrace-compute", daemon=True)
                self._thread.start()
            self._jobs.put(job)
        return job.future

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)
        self._release()

    def _run(self, job: _Job) -> None:
        try:
            job.future.set_result(job.work())
        except BaseException as error:  # load() raises it where it is waited for; steps raise nothing
            job.future.set_exception(error)
        with self._waking:
            if not self._is_closed:
                job.wake()

    def _release(self) -> None:
        self.model.close()
        if self.proposer is not None:
            self.proposer.close()


def _spread(batch: Batch, rows: Ints) -> Ints:
    """Return how many drafts each of these rows had, which may be more rows than the batch's."""
    assert batch.num_drafts is not None
    counts = dict(zip(batch.rows.tolist(), batch.num_drafts.tolist(), strict=True))
    return np.array([counts.get(row, 0) for row in rows.tolist()], dtype=np.int32)


def _nobody() -> None:
    """Wake nobody: load() blocks."""

"""Runner `sim`: a device clock and a cost model instead of a model.

A step starts at max(end of the step before, its submission) and ends a computed time later. On the real clock a timer
thread waits for that moment; on a VirtualClock it comes when the clock is moved there. Rows are counted as everywhere,
tokens are made up: no id below FIRST_TOKEN, so that no end-of-sequence id comes by chance. Sampling parameters have no
effect, and a request for log probabilities fails its row.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.core.columns import Ints, ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, RequestFailed, describe
from headrace.core.interfaces import Batch, Runner, StepHandle
from headrace.core.messages import RowFailure, RunnerReady, RunStep, StepDone
from headrace.core.providers import Clock, RunnerContext
from headrace.runners.batch import NO_LOGPROBS, WorkerState
from headrace.runners.fail_stop import FailStop, closed
from headrace.runners.modelless import modelless_facts
from headrace.runners.timers import TimerThread, VirtualClock

FIRST_TOKEN = 100


class SimOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.runner] of sim: what a step costs, in seconds."""

    base_s: float = 0.005
    """Per step."""
    per_token_s: float = 20e-6
    """Per token computed."""
    per_row_s: float = 10e-6
    """Per row of the step."""
    per_context_token_s: float = 5e-9
    """Per token of K/V that a computed token reads."""
    vocab_size: int = 49152

    def __post_init__(self) -> None:
        """Check the limits. Raises ConfigError."""
        for name in ("base_s", "per_token_s", "per_row_s", "per_context_token_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}, must be 0 or more seconds")
        if self.vocab_size <= FIRST_TOKEN:
            raise ConfigError(f"vocab_size is {self.vocab_size}, must be above {FIRST_TOKEN}")

    def duration_s(self, batch: Batch) -> float:
        """Return how long the device takes for a batch."""
        read = int((batch.positions + 1).sum(dtype=np.int64))
        num_tokens, num_rows = len(batch.token_ids), len(batch.rows)
        per_item = self.per_token_s * num_tokens + self.per_row_s * num_rows + self.per_context_token_s * read
        return self.base_s + per_item


def build(context: RunnerContext, options: SimOptions) -> Runner:
    """Build the runner; the context's clock is time.monotonic or a VirtualClock."""
    return SimRunner(context.config, options, context.max_rows, context.clock)


class SimRunner:
    """A Runner that computes nothing: what a step gives is known when it is submitted, and told when it is due.

    Owner of rows and device clock: the thread that submits.
    """

    def __init__(self, config: EngineConfig, options: SimOptions, max_rows: int, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._timer = clock if isinstance(clock, VirtualClock) else TimerThread()
        self._facts = modelless_facts(config, options.vocab_size)
        self._state = WorkerState(self._facts, max_rows, config.block_size)
        self._fail_stop = FailStop(clock)
        self._duration_s = 0.0
        self._free_at = 0.0
        """When the device has done all steps so far."""
        self._in_flight: deque[tuple[Future[StepDone], StepDone, Callable[[], None]]] = deque()
        self._is_closed = False

    def load(self) -> RunnerReady:
        """Return made-up facts."""
        return self._facts

    def submit(self, step: RunStep, wake: Callable[[], None]) -> StepHandle:
        """Put a step on the device's queue; it is done when the clock reads its end."""
        future: Future[StepDone] = Future()
        if self._is_closed:
            future.set_result(closed(step.step))
            return future
        started = max(self._free_at, self._clock())
        self._duration_s = self._options.base_s
        done = self._fail_stop.run(step, self._compute)
        self._free_at = started + self._duration_s
        self._in_flight.append((future, replace(done, started=started, ended=self._free_at), wake))
        if len(self._in_flight) == 1 and self._free_at <= self._clock():
            self._finish()  # it costs nothing: no timer has to tell
        else:
            self._timer.call_at(self._free_at, self._finish)
        return future

    def close(self) -> None:
        """Stop; idempotent. Steps in flight end with an error, and no `wake` is called any more."""
        self._is_closed = True
        if isinstance(self._timer, TimerThread):
            self._timer.close()
        while self._in_flight:
            future, done, _ = self._in_flight.popleft()
            future.set_result(closed(done.step))

    def _finish(self) -> None:
        if self._is_closed:
            return
        future, done, wake = self._in_flight.popleft()
        future.set_result(done)
        wake()

    def _compute(self, step: RunStep) -> StepDone:
        state, batch = self._state, self._state.apply(step)
        self._duration_s = self._options.duration_s(batch)
        wants_logprobs = (state.num_logprobs != NO_LOGPROBS) | (state.num_prompt_logprobs != NO_LOGPROBS)
        failed = tuple(self._refuse(int(row)) for row in batch.rows[wants_logprobs[batch.rows]])
        rows = batch.rows[batch.samples]
        rows = rows[~wants_logprobs[rows]]
        token_ids = self._next_tokens(state.num_ids[rows])
        state.append(rows, token_ids)
        num_new = state.count(ints(step.rows), rows)
        return StepDone(step.step, num_new=pack_ints(num_new), token_ids=pack_ints(token_ids), failed=failed)

    def _refuse(self, row: int) -> RowFailure:
        self._state.fail(row)
        return RowFailure(row, describe(RequestFailed("runner sim has no log probabilities; leave logprobs out")))

    def _next_tokens(self, positions: Ints) -> Ints:
        return FIRST_TOKEN + positions % np.int32(self._options.vocab_size - FIRST_TOKEN)

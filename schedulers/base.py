"""Who is here: requests come, wait, are admitted, give way and end, and all of it is counted.

What every scheduler does alike. What a step computes, and how rows are kept, is said in plain.py and table.py. No
asyncio, no torch.
"""

import contextlib
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.core.columns import ints
from headrace.core.errors import BusyError, ErrorInfo
from headrace.core.interfaces import BlockKeys, DraftStats, SchedulerStats
from headrace.core.messages import Admit, BindRow, Ended, FinishReason, RequestId, RunStep, StepDone, StepOutput
from headrace.core.providers import SchedulerContext
from headrace.schedulers.budget import check_config, check_fits, chunk_size
from headrace.schedulers.pace import Pace
from headrace.schedulers.request import Request, policy_args
from headrace.schedulers.rows import RowPool
from headrace.schedulers.step import Step

RequestT = TypeVar("RequestT", bound=Request)
StepT = TypeVar("StepT", bound=Step)


class BaseScheduler(ABC, Generic[RequestT, StepT]):
    """Sole owner of the requests and, through its policy, of the waiting queue."""

    def __init__(self, context: SchedulerContext, new_request: Callable[..., RequestT]) -> None:
        """Start empty; `new_request` is the subclass's kind of Request."""
        core = context.core
        check_config(core.config, core.facts)
        self._config = core.config
        self._clock = core.clock
        self._new_request = new_request
        self.kv = context.kv
        self.policy = context.policy
        self.requests: dict[RequestId, RequestT] = {}
        self.rows = RowPool(core.max_rows)
        self.in_flight: deque[StepT] = deque()
        self.must_reset_runner = False
        self._max_ahead = 1 if core.config.async_scheduling else 0
        self._num_submitted = 0
        self._order = 0
        self._is_paused = False
        self._admits = True
        self._preemptions = 0
        self._finished: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self._prompt_tokens = 0
        self._generation_tokens = 0
        step_ms = core.config.step_ms or core.facts.step_ms
        self._pace = Pace(step_ms / 1000) if step_ms and core.config.enable_chunked_prefill else None
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._accepted_per_pos = [0] * core.config.num_speculative_tokens

    # --- what subclasses say ---

    @abstractmethod
    def running_requests(self) -> list[RequestT]:
        """List requests that hold a row, in the order of their admission."""

    @abstractmethod
    def num_running(self) -> int:
        """Count requests that hold a row."""

    @abstractmethod
    def update(self, done: StepDone) -> StepOutput | None:
        """Take in a step's result, in the order of the steps. Returns what to publish."""

    @abstractmethod
    def _new_step(self, number: int, limit: int) -> StepT:
        """Begin a step of at most `limit` tokens."""

    @abstractmethod
    def _schedule_running(self, step: StepT) -> None:
        """Give tokens of the step to requests that hold a row."""

    @abstractmethod
    def _commit_blocks(self, step: StepT) -> None:
        """Register prompt blocks this step fills, before others are admitted to it: they may share them at once."""

    @abstractmethod
    def _is_in_flight(self, request: RequestT) -> bool:
        """Tell whether tokens of a waiting request, which was preempted, are still to come."""

    @abstractmethod
    def _enter(self, step: StepT, request: RequestT, num_tokens: int, bind: BindRow | None = None) -> None:
        """Schedule tokens of one row; with `bind`, its first ones: the row is bound to the request now."""

    @abstractmethod
    def _leave_row(self, request: RequestT, *, keep_cache: bool = True) -> None:
        """Take a request's row and blocks. keep_cache False: its K/V, and tokens in flight, turned out unsound."""

    # --- requests come and go ---

    def add(self, request: Admit) -> None:
        """Queue a request. Raises RequestError: it can never fit, or its policy_args are wrong."""
        check_fits(request, self.kv.max_tokens())
        self._order += 1
        keys = BlockKeys(request.block_root, request.block_hashes)
        cached_len = self.kv.match(keys, request.num_prompt) if request.read_cache else 0
        args, ids = policy_args(request, self.policy), array("i", ints(request.token_ids))
        added = self._new_request(request, self._order, args, cached_len, ids, keys)
        self.policy.add(added.facts)
        self.requests[added.id] = added

    def abort(self, requests: Sequence[RequestId]) -> StepOutput | None:
        """End these requests now; unknown ones are ignored. Returns what to publish."""
        known = [self.requests[request] for request in requests if request in self.requests]
        ended = tuple(self.finish(request, "abort") for request in dict.fromkeys(known))
        return StepOutput(ended=ended) if ended else None

    def stop(self, request: RequestId, num_tokens: int) -> None:
        """End a request that hit a stop string; nothing is published, its end is known already."""
        if known := self.requests.get(request):
            self.finish(known, "stop", num_generated=num_tokens)

    def finish(
        self,
        request: RequestT,
        reason: FinishReason,
        stop_reason: int | None = None,
        error: ErrorInfo | None = None,
        num_generated: int | None = None,
    ) -> Ended:
        """End a request: its blocks are free at once, its row once the steps in flight have returned."""
        del self.requests[request.id]
        generated = request.num_generated if num_generated is None else num_generated
        if request.row is None:
            self.policy.remove(request.facts)
        else:
            self._leave_row(request)
        self.policy.on_finish(request.facts, reason)
        self._finished[reason] += 1
        self._prompt_tokens += request.admit.num_prompt
        self._generation_tokens += generated
        return Ended(request.id, reason, stop_reason, error, request.admit.num_prompt, request.num_cached)

    def preempt(self, request: RequestT, *, keep_cache: bool = True) -> None:
        """Take a running request's row and blocks; it waits at its place in the queue and recomputes."""
        self._leave_row(request, keep_cache=keep_cache)
        self.policy.add(request.facts)
        self._preemptions += 1

    def is_alive(self, request: Request) -> bool:
        """Tell whether a request has not ended."""
        return self.requests.get(request.id) is request

    def last_returned(self) -> int:
        """Return the number of the last step that has returned."""
        return self.in_flight[0].number - 1 if self.in_flight else self._num_submitted

    # --- a step is made ---

    def schedule(self) -> RunStep | None:
        """Decide the next step; None if nothing can run now."""
        if self._is_paused:
            return None
        step = self._new_step(self._num_submitted + 1, self._config.max_num_batched_tokens)
        self._schedule_running(step)
        self._commit_blocks(step)
        if self._admits and not step.has_preempted:
            self._admit_waiting(step)
        return self._submit(step) if len(step) else None

    def _admit_waiting(self, step: StepT) -> None:
        if len(self.requests) == self.num_running() or self._is_full(step):
            return
        with contextlib.closing(self.policy.candidates(self._clock())) as candidates:
            for facts in candidates:
                if self._is_full(step) or not self._admit(step, self.requests[facts.id]):
                    return

    def _is_full(self, step: StepT) -> bool:
        return not step.budget or self.num_running() >= self._config.max_num_seqs or not self.rows

    def _admit(self, step: StepT, request: RequestT) -> bool:
        """Give a waiting request a row and its first chunk; False if it and those behind it must wait."""
        if self._is_in_flight(request):
            return False
        known, read_cache = request.num_known, request.admit.read_cache
        cached = self.kv.match(request.keys, known) if read_cache else 0
        num_tokens = self._chunk(step, known - cached, cached)
        if num_tokens == 0:
            return False
        is_resumed = request.admitted is not None
        row = self.rows.take()
        if self.kv.admit(row, request.keys, known, read_cache, is_resumed) is None:
            self.rows.give(row, fence=0, returned=0)
            return False
        if not is_resumed:
            request.admitted, request.num_cached = self._clock(), cached
        self.policy.remove(request.facts)
        request.row, request.announced_row = row, None
        bind = BindRow(row, request.ids.tobytes(), request.admit.num_prompt, cached, request.admit.sampling)
        self._enter(step, request, num_tokens, bind)
        self.kv.commit(row, cached + num_tokens)
        return True

    def _chunk(self, step: StepT, remaining: int, position: int) -> int:
        """Return how many of a row's `remaining` tokens, from `position` on, the step computes; 0 is not now."""
        num_tokens = chunk_size(remaining, step.budget, self._config)
        if remaining == 1 or num_tokens == 0:
            return num_tokens
        if self._pace is not None:
            before, is_first = step.limit - step.budget, not step.has_chunk
            step.holds_up |= is_first and before > 0
            room = self._pace.room(before, step.reads(), position, is_first=is_first, holds_up=step.holds_up)
            num_tokens = min(num_tokens, room)
        step.has_chunk |= num_tokens > 0
        return num_tokens

    def _observe(self, step: StepT, done: StepDone) -> None:
        """Learn what a step cost."""
        if self._pace is not None and step.has_chunk and done.error is None:
            self._pace.observe(step.limit - step.budget, step.reads(), done.ended - done.started)

    def _submit(self, step: StepT) -> RunStep:
        self._num_submitted = step.number
        self.in_flight.append(step)
        reset, self.must_reset_runner = self.must_reset_runner, False
        return step.message(self.kv.take_changes(), reset)

    def _count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """Count the drafts that one row had in a step."""
        self._num_drafts += 1
        self._num_draft_tokens += num_drafts
        for position in range(num_accepted):
            self._accepted_per_pos[position] += 1

    # --- everything else ---

    def pause(self, *, admissions: bool, steps: bool) -> None:
        """Set what is off: admitting waiting requests, or all steps. Both False: everything on."""
        self._admits, self._is_paused = not admissions, steps

    def reset_prefix_cache(self, force: bool) -> None:
        """Forget cached blocks; no step is in flight. Raises BusyError if blocks are in use and `force` is False."""
        assert not self.in_flight
        running = self.running_requests()
        if running and not force:
            raise BusyError(f"{len(running)} running requests use cached blocks; wait, or reset with force=True")
        for request in running:
            self.preempt(request, keep_cache=False)
        self.kv.reset()

    def unfinished(self) -> list[RequestId]:
        """List all requests that have not ended."""
        return list(self.requests)

    def stats(self) -> SchedulerStats:
        """Read the counters."""
        return SchedulerStats(
            num_waiting=len(self.requests) - self.num_running(),
            num_running=self.num_running(),
            preemptions=self._preemptions,
            finished=dict(self._finished),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            steps=self._num_submitted,
            kv=self.kv.stats(),
            drafts=DraftStats(self._num_drafts, self._num_draft_tokens, tuple(self._accepted_per_pos)),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests."""
        self.kv.check_invariants()
        running = self.running_requests()
        held = {request.row for request in running}
        assert len(held) == len(running) == self.num_running() <= self._config.max_num_seqs
        assert len(held) + len(self.rows) + self.rows.count_fenced() == self.rows.max_rows
        assert {r.id for r in running} == {r.id for r in self.requests.values() if r.row is not None}

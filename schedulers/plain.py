"""The plain scheduler: readable first, and the reference for every other one.

What a step computes: running rows first (those that decode, then prefill chunks), then waiting requests in the policy's
order, all from one token budget. Out of blocks, the policy's victim is preempted and recomputes later. No asyncio, no
torch.
"""

import contextlib
from collections import deque
from collections.abc import Sequence

from headrace.core.columns import ints
from headrace.core.errors import BusyError, ErrorInfo
from headrace.core.interfaces import BlockKeys, SchedulerContext, SchedulerStats
from headrace.core.messages import (
    Admit,
    BindRow,
    Ended,
    FinishReason,
    RequestId,
    RunStep,
    StepDone,
    StepOutput,
)
from headrace.schedulers.budget import check_config, check_fits, chunk_size, find_stop
from headrace.schedulers.request import Request, facts_of, make_request
from headrace.schedulers.rows import RowPool
from headrace.schedulers.step import Entry, OutputBuilder, Step


class PlainScheduler:
    """Sole owner of the request table, the waiting queue (through its policy) and the running order."""

    def __init__(self, context: SchedulerContext) -> None:
        core = context.core
        check_config(core.config, core.facts)
        self._config = core.config
        self._clock = core.clock
        self.kv = context.kv
        self.policy = context.policy
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.rows = RowPool(core.max_rows)
        self.in_flight: deque[Step] = deque()
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

    # --- requests come and go ---

    def add(self, request: Admit) -> None:
        """Queue a request. Raises RequestError: it can never fit, or its policy_args are wrong."""
        check_fits(request, self.kv.max_tokens())
        self._order += 1
        keys = BlockKeys(request.block_root, request.block_hashes)
        cached_len = self.kv.match(keys, request.num_prompt) if request.read_cache else 0
        added = make_request(request, self._order, cached_len, keys, self.policy)
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
        request: Request,
        reason: FinishReason,
        stop_reason: int | None = None,
        error: ErrorInfo | None = None,
        num_generated: int | None = None,
    ) -> Ended:
        """End a request: its blocks are free at once, its row once the steps in flight have returned."""
        del self.requests[request.id]
        if request.row is None:
            self.policy.remove(request.facts)
        else:
            self._leave_row(request)
        self.policy.on_finish(request.facts, reason)
        self._finished[reason] += 1
        self._prompt_tokens += request.admit.num_prompt
        self._generation_tokens += request.num_generated if num_generated is None else num_generated
        return Ended(request.id, reason, stop_reason, error, request.admit.num_prompt, request.num_cached)

    def preempt(self, request: Request, *, keep_cache: bool = True) -> None:
        """Take a running request's row and blocks; it waits at its place in the queue and recomputes."""
        self._leave_row(request, keep_cache=keep_cache)
        self.policy.add(request.facts)
        self._preemptions += 1

    def _leave_row(self, request: Request, *, keep_cache: bool = True) -> None:
        assert request.row is not None
        sound = request.sound_ids()
        self.kv.release(request.row, sound if keep_cache else sound[:0])
        self.rows.give(request.row, fence=self._num_submitted, returned=self.last_returned())
        self.running.remove(request)
        request.row = None
        request.num_computed = request.num_confirmed = 0

    def last_returned(self) -> int:
        """Return the number of the last step that has returned."""
        return self.in_flight[0].number - 1 if self.in_flight else self._num_submitted

    # --- a step is made ---

    def schedule(self) -> RunStep | None:
        """Decide the next step; None if nothing can run now."""
        if self._is_paused:
            return None
        limit = self._config.max_num_batched_tokens
        step = Step(self._num_submitted + 1, limit, budget=limit)
        self._schedule_running(step)
        self._commit_blocks(step)
        if self._admits and not step.has_preempted:
            self._admit_waiting(step)
        return self._submit(step) if step.entries else None

    def _schedule_running(self, step: Step) -> None:
        ready = [r for r in self.running if r.in_flight <= self._max_ahead and not r.has_all_tokens]
        decoding = [r for r in ready if r.num_tokens - r.num_computed == 1]
        prefilling = [r for r in ready if r.num_tokens - r.num_computed > 1]
        for request in decoding + prefilling:
            if step.budget and request.row is not None:
                self._extend(step, request)

    def _extend(self, step: Step, request: Request) -> None:
        """Schedule a running request's next tokens, preempting others or itself while blocks are lacking."""
        num_tokens = chunk_size(request.num_tokens - request.num_computed, step.budget, self._config)
        if num_tokens == 0:
            return
        assert request.row is not None
        while not self.kv.grow(request.row, request.num_computed + num_tokens):
            victim = self.running[self.policy.victim(facts_of(self.running), request.facts)]
            self._preempt_in(step, victim)
            if victim is request:
                return
        self._enter(step, request, num_tokens)

    def _preempt_in(self, step: Step, victim: Request) -> None:
        assert victim.row is not None
        if entry := step.entries.pop(victim.row, None):
            step.budget += entry.num_tokens
            victim.in_flight -= 1
            victim.placeholders -= entry.samples
        self.preempt(victim)
        step.has_preempted = True

    def _enter(self, step: Step, request: Request, num_tokens: int, bind: BindRow | None = None) -> None:
        assert request.row is not None
        samples = request.num_computed + num_tokens == request.num_tokens
        request.num_computed += num_tokens
        step.entries[request.row] = Entry(request, request.row, num_tokens, request.num_computed, samples, bind)
        step.budget -= num_tokens
        request.placeholders += samples
        request.in_flight += 1

    def _commit_blocks(self, step: Step) -> None:
        """Register prompt blocks this step fills, before others are admitted to it: they may share them at once."""
        for entry in step.entries.values():
            if entry.request.num_computed - entry.num_tokens < entry.request.num_bound:
                self.kv.commit(entry.row, entry.request.num_computed)

    def _admit_waiting(self, step: Step) -> None:
        with contextlib.closing(self.policy.candidates(self._clock())) as candidates:
            for facts in candidates:
                is_full = len(self.running) >= self._config.max_num_seqs or not self.rows or not step.budget
                if is_full or not self._admit(step, self.requests[facts.id]):
                    return

    def _admit(self, step: Step, request: Request) -> bool:
        """Give a waiting request a row and its first chunk; False if it and those behind it must wait."""
        if request.in_flight:  # preempted, and tokens of it are still to come
            return False
        known, read_cache = request.num_known, request.admit.read_cache
        cached = self.kv.match(request.keys, known) if read_cache else 0
        num_tokens = chunk_size(known - cached, step.budget, self._config)
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
        self.running.append(request)
        request.row, request.num_bound, request.announced_row = row, known, None
        request.num_computed = request.num_confirmed = cached
        bind = BindRow(row, request.ids.tobytes(), request.admit.num_prompt, cached, request.admit.sampling)
        self._enter(step, request, num_tokens, bind)
        self.kv.commit(row, request.num_computed)
        return True

    def _submit(self, step: Step) -> RunStep:
        self._num_submitted = step.number
        self.in_flight.append(step)
        reset, self.must_reset_runner = self.must_reset_runner, False
        return step.message(self.kv.take_changes(), reset)

    # --- a step comes back ---

    def update(self, done: StepDone) -> StepOutput | None:
        """Take in a step's result, in the order of the steps. Returns what to publish."""
        step = self.in_flight.popleft()
        assert step.number == done.step, f"step {done.step} came back, expected {step.number}"
        for entry in step.entries.values():
            entry.request.in_flight -= 1
            entry.request.placeholders -= entry.samples
        output = OutputBuilder()
        if step.is_void:
            pass
        elif done.error is not None:
            self._fail_step(step, done.error, output)
        else:
            self._fail_rows(step, done, output)
            self._take_tokens(step, done, output)
        self.rows.returned(self.last_returned())
        return output.build(done)

    def _take_tokens(self, step: Step, done: StepDone, output: OutputBuilder) -> None:
        token_ids, at = ints(done.token_ids).tolist(), 0
        for entry, count in zip(step.entries.values(), ints(done.num_new).tolist(), strict=True):
            if self._is_alive(entry):
                self._take_row(entry, token_ids[at : at + count], output)
            at += count

    def _take_row(self, entry: Entry, token_ids: list[int], output: OutputBuilder) -> None:
        request = entry.request
        if request.row is not None:
            request.num_confirmed = entry.end
        stop = find_stop(token_ids, request.num_generated, request.admit)
        if stop:
            token_ids = token_ids[: stop.num_tokens]
        request.ids.extend(token_ids)
        output.add_tokens(request, entry.row, token_ids)
        if stop:
            output.add_ended(self.finish(request, stop.reason, stop.stop_reason))
        elif entry.samples and not token_ids and request.row is not None:
            self.preempt(request)  # the runner gave nothing: it computes the row again from what is known

    def _is_alive(self, entry: Entry) -> bool:
        return not entry.is_void and self.requests.get(entry.request.id) is entry.request

    # --- failures ---

    def _fail_rows(self, step: Step, done: StepDone, output: OutputBuilder) -> None:
        """End the requests of failed rows; those that share blocks these registered recompute."""
        for failure in done.failed:
            entry = step.entries[failure.row]
            if not self._is_alive(entry):
                continue
            by_row = {request.row: request for request in self.running}
            suspects = [by_row[row] for row in self.kv.withdraw(entry.row)]
            output.add_ended(self.finish(entry.request, "error", error=failure.error))
            for request in suspects:
                assert request.row is not None
                for other in (step, *self.in_flight):
                    if unsound := other.entries.get(request.row):
                        unsound.is_void = True
                self.preempt(request, keep_cache=False)

    def _fail_step(self, step: Step, error: ErrorInfo, output: OutputBuilder) -> None:
        """End the requests of a failed step; all others recompute on a runner that starts anew."""
        for entry in step.entries.values():
            if self._is_alive(entry):
                output.add_ended(self.finish(entry.request, "error", error=error))
        for later in self.in_flight:
            later.void()
        for request in list(self.running):
            self.preempt(request, keep_cache=False)
        self.kv.reset()
        self.must_reset_runner = True

    # --- everything else ---

    def pause(self, *, admissions: bool, steps: bool) -> None:
        """Set what is off: admitting waiting requests, or all steps. Both False: everything on."""
        self._admits, self._is_paused = not admissions, steps

    def reset_prefix_cache(self, force: bool) -> None:
        """Forget cached blocks; no step is in flight. Raises BusyError if blocks are in use and `force` is False."""
        assert not self.in_flight
        if self.running and not force:
            raise BusyError(f"{len(self.running)} running requests use cached blocks; wait, or reset with force=True")
        for request in list(self.running):
            self.preempt(request, keep_cache=False)
        self.kv.reset()

    def unfinished(self) -> list[RequestId]:
        """List all requests that have not ended."""
        return list(self.requests)

    def num_running(self) -> int:
        """Count requests that hold a row."""
        return len(self.running)

    def stats(self) -> SchedulerStats:
        """Read the counters."""
        return SchedulerStats(
            num_waiting=len(self.requests) - len(self.running),
            num_running=len(self.running),
            preemptions=self._preemptions,
            finished=dict(self._finished),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            steps=self._num_submitted,
            kv=self.kv.stats(),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests."""
        self.kv.check_invariants()
        held = [request.row for request in self.running]
        assert len(set(held)) == len(held) <= self._config.max_num_seqs
        assert len(held) + len(self.rows) + self.rows.count_fenced() == self.rows.max_rows
        for request in self.requests.values():
            entries = [step.entries.get(request.row) for step in self.in_flight] if request.row is not None else []
            assert (request.row is not None) == (request in self.running)
            assert 0 <= request.placeholders <= request.in_flight
            assert request.num_confirmed <= request.num_computed <= request.num_tokens
            assert request.row is None or request.in_flight == sum(entry is not None for entry in entries)
        for step in self.in_flight:
            num_tokens = sum(entry.num_tokens for entry in step.entries.values())
            assert 0 < num_tokens == step.limit - step.budget <= step.limit

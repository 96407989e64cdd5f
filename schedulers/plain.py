"""The plain scheduler: readable first, and the reference for every other one.

What a step computes: running rows first (those that decode, then prefill chunks), then waiting requests in the policy's
order, all from one token budget. Out of blocks, the policy's victim is preempted and recomputes later. No asyncio, no
torch.
"""

from dataclasses import dataclass, field

from headrace.core.columns import ints, pack_ints
from headrace.core.errors import ErrorInfo
from headrace.core.messages import BindRow, RunStep, StepDone, StepOutput
from headrace.core.providers import SchedulerContext
from headrace.schedulers.base import BaseScheduler
from headrace.schedulers.budget import drafts_for, find_stop
from headrace.schedulers.pace import reads_of
from headrace.schedulers.request import Request, facts_of
from headrace.schedulers.step import OutputBuilder, Step, num_drafted


@dataclass(slots=True, eq=False)
class PlainRequest(Request):
    """A request with its counts.

    num_known <= num_tokens = num_known + placeholders; num_computed <= num_tokens.
    """

    num_computed: int = 0
    """Tokens whose K/V exist or are scheduled."""
    num_confirmed: int = 0
    """Tokens whose K/V were computed by steps that have returned."""
    num_bound: int = 0
    """Known tokens when the row was bound."""
    placeholders: int = 0
    """Tokens that steps in flight will sample."""
    in_flight: int = 0
    """Steps in flight that compute this request."""

    @property
    def num_tokens(self) -> int:
        """Known tokens and placeholders."""
        return self.num_known + self.placeholders


@dataclass(slots=True, eq=False)
class Entry:
    """One row of a step."""

    request: PlainRequest
    row: int
    num_tokens: int
    end: int
    """Tokens of the request that are computed after the step."""
    samples: bool
    num_drafts: int = 0
    """Of the tokens, those that are room for drafts."""
    bind: BindRow | None = None
    is_void: bool = False
    """Its tokens rest on K/V that turned out unsound: they are dropped."""

    @property
    def num_placeholders(self) -> int:
        """Most tokens that it may give."""
        return self.samples + self.num_drafts


@dataclass(slots=True, eq=False)
class PlainStep(Step):
    """A step as a list of its rows."""

    entries: dict[int, Entry] = field(default_factory=dict)
    """By row, in the order they were scheduled."""

    def __len__(self) -> int:
        """Count its rows."""
        return len(self.entries)

    def void(self) -> None:
        """Make the results of this step in flight worthless."""
        self.is_void = True
        for entry in self.entries.values():
            entry.is_void = True

    def message(self, tables: bytes, reset: bool) -> RunStep:
        """Return the step as the runner gets it."""
        entries = self.entries.values()
        return RunStep(
            step=self.number,
            rows=pack_ints(list(self.entries)),
            num_tokens=pack_ints([entry.num_tokens for entry in entries]),
            bound=tuple(entry.bind for entry in entries if entry.bind),
            tables=tables,
            reset=reset,
        )


class PlainScheduler(BaseScheduler[PlainRequest, PlainStep]):
    """Keeps each row's counts in its request's object."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, PlainRequest)
        self.running: list[PlainRequest] = []

    def running_requests(self) -> list[PlainRequest]:
        """List requests that hold a row, in the order of their admission."""
        return list(self.running)

    def num_running(self) -> int:
        """Count requests that hold a row."""
        return len(self.running)

    def _leave_row(self, request: PlainRequest, *, keep_cache: bool = True) -> None:
        assert request.row is not None
        self.kv.release(request.row, request.first_ids(request.num_confirmed if keep_cache else 0))
        self.rows.give(request.row, fence=self._num_submitted, returned=self.last_returned())
        self.running.remove(request)
        request.row = None
        request.num_computed = request.num_confirmed = 0

    # --- a step is made ---

    def _new_step(self, number: int, limit: int) -> PlainStep:
        return PlainStep(number, limit, budget=limit)

    def _schedule_running(self, step: PlainStep) -> None:
        ready = [r for r in self.running if r.in_flight <= self._max_ahead and r.num_tokens < r.limit]
        decoding = [r for r in ready if r.num_tokens - r.num_computed == 1]
        prefilling = [r for r in ready if r.num_tokens - r.num_computed > 1]
        for place, request in enumerate(decoding + prefilling):
            if step.budget and request.row is not None:
                self._extend(step, request, spare=step.budget - max(len(decoding) - place, 1))

    def _extend(self, step: PlainStep, request: PlainRequest, spare: int) -> None:
        """Schedule a running request's next tokens, preempting others or itself while blocks are lacking.

        spare: tokens of the step that may go to drafts; they preempt nobody.
        """
        remaining = request.num_tokens - request.num_computed
        num_tokens = self._chunk(step, remaining, request.num_computed)
        if num_tokens == 0:
            return
        assert request.row is not None
        if remaining == 1 and request.num_computed >= request.num_bound:
            drafts = drafts_for(request.num_tokens, request.limit, spare, self._config)
            if drafts and self.kv.grow(request.row, request.num_computed + num_tokens + drafts):
                self._enter(step, request, num_tokens + drafts, num_drafts=drafts)
                return
        while not self.kv.grow(request.row, request.num_computed + num_tokens):
            victim = self.running[self.policy.victim(facts_of(self.running), request.facts)]
            self._preempt_in(step, victim)
            if victim is request:
                return
        self._enter(step, request, num_tokens)

    def _preempt_in(self, step: PlainStep, victim: PlainRequest) -> None:
        assert victim.row is not None
        if entry := step.entries.pop(victim.row, None):
            step.budget += entry.num_tokens
            step.num_reads -= reads_of(entry.end - entry.num_tokens, entry.num_tokens)
            victim.in_flight -= 1
            victim.placeholders -= entry.num_placeholders
        self.preempt(victim)
        step.has_preempted = True

    def _enter(
        self,
        step: PlainStep,
        request: PlainRequest,
        num_tokens: int,
        bind: BindRow | None = None,
        num_drafts: int = 0,
    ) -> None:
        assert request.row is not None
        if bind:
            self.running.append(request)
            request.num_bound = request.num_known
            request.num_computed = request.num_confirmed = bind.num_computed
        samples = request.num_computed + num_tokens - num_drafts == request.num_tokens
        step.num_reads += reads_of(request.num_computed, num_tokens)
        request.num_computed += num_tokens
        end = request.num_computed
        step.entries[request.row] = entry = Entry(request, request.row, num_tokens, end, samples, num_drafts, bind)
        step.budget -= num_tokens
        request.placeholders += entry.num_placeholders
        request.in_flight += 1

    def _commit_blocks(self, step: PlainStep) -> None:
        for entry in step.entries.values():
            if entry.request.num_computed - entry.num_tokens < entry.request.num_bound:
                self.kv.commit(entry.row, entry.request.num_computed)

    def _is_in_flight(self, request: PlainRequest) -> bool:
        return request.in_flight > 0

    # --- a step comes back ---

    def update(self, done: StepDone) -> StepOutput | None:
        """Take in a step's result, in the order of the steps. Returns what to publish."""
        step = self.in_flight.popleft()
        assert step.number == done.step, f"step {done.step} came back, expected {step.number}"
        for entry in step.entries.values():
            entry.request.in_flight -= 1
            entry.request.placeholders -= entry.num_placeholders
        self._observe(step, done)
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

    def _take_tokens(self, step: PlainStep, done: StepDone, output: OutputBuilder) -> None:
        token_ids, at = ints(done.token_ids).tolist(), 0
        counts = zip(ints(done.num_new).tolist(), num_drafted(done), strict=True)
        for entry, (count, drafted) in zip(step.entries.values(), counts, strict=True):
            if self._counts(entry):
                if drafted and count:
                    self._count_drafts(drafted, count - 1)
                self._take_row(entry, token_ids[at : at + count], output)
            at += count

    def _take_row(self, entry: Entry, token_ids: list[int], output: OutputBuilder) -> None:
        request = entry.request
        if request.row is not None:
            if entry.num_drafts and token_ids:
                request.num_computed -= entry.num_placeholders - len(token_ids)
            sound = request.num_known + max(len(token_ids), 1) - 1
            request.num_confirmed = min(sound, entry.end) if entry.samples else entry.end
        stop = find_stop(token_ids, request.num_generated, request.admit)
        if stop:
            token_ids = token_ids[: stop.num_tokens]
        request.ids.extend(token_ids)
        output.announce(request, entry.row, token_ids)
        output.add_tokens(entry.row, token_ids)
        if stop:
            output.add_ended(self.finish(request, stop.reason, stop.stop_reason))
        elif entry.samples and not token_ids and request.row is not None:
            self.preempt(request)  # the runner gave nothing: it computes the row again from what is known

    def _counts(self, entry: Entry) -> bool:
        """Tell whether what a row of a step gave is of use."""
        return not entry.is_void and self.is_alive(entry.request)

    # --- failures ---

    def _fail_rows(self, step: PlainStep, done: StepDone, output: OutputBuilder) -> None:
        """End the requests of failed rows; those that share blocks these registered recompute.

        Blocks of a request that has ended meanwhile are no sounder for that.
        """
        for failure in done.failed:
            entry = step.entries[failure.row]
            if entry.is_void:
                continue
            by_row = {request.row: request for request in self.running}
            suspects = [by_row[row] for row in self.kv.withdraw(entry.row)]
            if self.is_alive(entry.request):
                output.add_ended(self.finish(entry.request, "error", error=failure.error))
            for request in suspects:
                assert request.row is not None
                for other in (step, *self.in_flight):
                    if unsound := other.entries.get(request.row):
                        unsound.is_void = True
                self.preempt(request, keep_cache=False)

    def _fail_step(self, step: PlainStep, error: ErrorInfo, output: OutputBuilder) -> None:
        """End the requests of a failed step; all others recompute on a runner that starts anew."""
        for entry in step.entries.values():
            if self._counts(entry):
                output.add_ended(self.finish(entry.request, "error", error=error))
        for later in self.in_flight:
            later.void()
        for request in list(self.running):
            self.preempt(request, keep_cache=False)
        self.kv.reset()
        self.must_reset_runner = True

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests."""
        super().check_invariants()
        for request in self.requests.values():
            entries = [step.entries.get(request.row) for step in self.in_flight] if request.row is not None else []
            assert 0 <= request.placeholders <= request.in_flight * (1 + self._config.num_speculative_tokens)
            assert request.num_confirmed <= request.num_computed <= request.num_tokens
            assert request.row is None or request.in_flight == sum(entry is not None for entry in entries)
        for step in self.in_flight:
            num_tokens = sum(entry.num_tokens for entry in step.entries.values())
            assert 0 < num_tokens == step.limit - step.budget <= step.limit

"""The table scheduler: the schedule of plain.py, made from columns of numbers.

A step in which rows only decode costs a few operations on arrays, however many rows there are. Objects are touched only
for rows that something happens to: admission, a prefill chunk, a full block, a stop, the end. No asyncio, no torch.
"""

from collections.abc import Iterable
from functools import partial

import numpy as np

from headrace.core.columns import Ints, ints, pack_ints
from headrace.core.errors import ErrorInfo
from headrace.core.interfaces import AddsBlocks
from headrace.core.messages import BindRow, StepDone, StepOutput
from headrace.core.providers import SchedulerContext
from headrace.schedulers.base import BaseScheduler
from headrace.schedulers.budget import drafts_for, find_stop
from headrace.schedulers.columns import MAX_STOPS, ONE, TAIL, Columns, Rows
from headrace.schedulers.lane import Lane
from headrace.schedulers.pace import reads_of
from headrace.schedulers.request import facts_of
from headrace.schedulers.step import OutputBuilder, num_drafted
from headrace.schedulers.table_request import TableRequest
from headrace.schedulers.table_step import ONE_TOKEN, Chunk, TableStep


class TableScheduler(BaseScheduler[TableRequest, TableStep]):
    """Keeps each row's counts in columns, and decodes all rows at once."""

    def __init__(self, context: SchedulerContext) -> None:
        max_rows = context.core.max_rows
        self._columns = Columns(max_rows, context.kv.block_size)
        super().__init__(context, partial(TableRequest, columns=self._columns))
        self._requests: list[TableRequest | None] = [None] * max_rows
        """By row, the request it was last bound to; None: what steps in flight say of it is void."""
        self._running: Rows = np.zeros(max_rows, np.intp)
        """Rows in the order of their admission; only the first `_num_running` count."""
        self._num_running = 0
        self._lane: Lane | None = None
        """What the last step scheduled, while the next one can use it again."""
        self._add_blocks = self.kv.add_blocks if isinstance(self.kv, AddsBlocks) else None

    def running_requests(self) -> list[TableRequest]:
        """List requests that hold a row, in the order of their admission."""
        return [self._request(row) for row in self._running[: self._num_running].tolist()]

    def num_running(self) -> int:
        """Count requests that hold a row."""
        return self._num_running

    def _request(self, row: int) -> TableRequest:
        request = self._requests[row]
        assert request is not None
        return request

    # --- rows are taken and left ---

    def _bind(self, request: TableRequest, bind: BindRow) -> None:
        stop_ids = request.admit.stop_ids
        self._columns.bind(bind.row, len(request.ids), bind.num_computed, request.limit, stop_ids)
        self._requests[bind.row] = request
        self._running[self._num_running] = bind.row
        self._num_running += 1

    def _leave_row(self, request: TableRequest, *, keep_cache: bool = True) -> None:
        row, columns = request.row, self._columns
        assert row is not None
        self._drop_lane()
        columns.flush(row, request.ids)
        self.kv.release(row, request.first_ids(int(columns.num_confirmed[row]) if keep_cache else 0))
        self.rows.give(row, fence=self._num_submitted, returned=self.last_returned())
        self._remove_running(row)
        columns.due[row] = 0
        request.row = None
        if not keep_cache:
            self._requests[row] = None
        if self.is_alive(request):
            request.last_step = next((step.number for step in reversed(self.in_flight) if step.has(row)), 0)

    def _remove_running(self, row: int) -> None:
        running = self._running[: self._num_running]
        place = int((running == row).argmax())
        running[place:-1] = running[place + 1 :]
        self._num_running -= 1

    def _is_in_flight(self, request: TableRequest) -> bool:
        return request.last_step > self.last_returned()

    # --- a step is made ---

    def _new_step(self, number: int, limit: int) -> TableStep:
        return TableStep(number, limit)

    def _schedule_running(self, step: TableStep) -> None:
        if not self._num_running:
            return
        lane = self._lane
        if lane is None or len(self.in_flight) > self._max_ahead:
            lane = self._make_lane()
        num_ready = self._make_room(lane, min(len(lane.rows), step.budget))
        if num_ready == len(lane.rows):
            self._decode(step, lane)
            behind = lane.behind
        else:
            self._drop_lane()
            self._decode(step, Lane(self._columns, lane.rows[:num_ready], [], is_for_one_step=True))
            behind = [*lane.rows[num_ready:].tolist(), *lane.behind]
        num_decoding = lane.num_drafting
        for place, row in enumerate(behind):
            if step.budget and self._request(row).row == row:
                self._extend(step, row, spare=step.budget - max(num_decoding - place, 1))

    def _make_lane(self) -> Lane:
        """Find the rows that decode, and those that prefill."""
        self._drop_lane()
        columns, rows = self._columns, self._running[: self._num_running]
        num_tokens = columns.num_tokens[rows]
        is_ready = num_tokens < columns.limit[rows]
        is_crowded = len(self.in_flight) > self._max_ahead
        if is_crowded:
            is_ready &= self._count_in_flight()[rows] <= self._max_ahead
        is_decoding = columns.num_computed[rows] + ONE == num_tokens
        behind = rows[is_ready & ~is_decoding].tolist()
        decoding = rows[is_ready & is_decoding]
        if self._config.num_speculative_tokens:  # they may take several tokens each
            self._lane = Lane(columns, decoding[:0], decoding.tolist() + behind, num_drafting=len(decoding))
        else:
            self._lane = Lane(columns, decoding, behind, is_for_one_step=is_crowded)
        return self._lane

    def _drop_lane(self) -> None:
        if self._lane:
            self._lane.store()
            self._lane = None

    def _count_in_flight(self) -> Ints:
        """Count, by row, the steps in flight that compute it."""
        counts = np.zeros(self.rows.max_rows, np.int32)
        for step in self.in_flight:
            counts[step.all_rows()] += ONE
        return counts

    def _make_room(self, lane: Lane, count: int) -> int:
        """Make room for a token more in the lane's first `count` rows; returns how many, from the first on, have it."""
        full = lane.full(count)
        if not len(full):
            return count
        num_grown = self._add_blocks_to(lane.rows[full])
        lane.add_block(full[:num_grown])
        return count if num_grown == len(full) else int(full[num_grown])

    def _add_blocks_to(self, rows: Rows) -> int:
        """Add a block to each of these rows, in order, until blocks are lacking; returns how many got one."""
        if len(rows) > 1 and self._add_blocks and self._add_blocks(rows):
            return len(rows)
        for i, row in enumerate(rows.tolist()):
            if not self.kv.grow(row, int(self._columns.room[row]) + 1):
                return i
        return len(rows)

    def _decode(self, step: TableStep, lane: Lane) -> None:
        can_go_on = lane.advance()
        step.take_lane(lane)
        if lane is not self._lane:
            lane.store()
        elif not can_go_on:
            self._drop_lane()

    def _extend(self, step: TableStep, row: int, spare: int) -> None:
        """Schedule a row's next tokens, preempting others or itself while blocks are lacking.

        spare: tokens of the step that may go to drafts; they preempt nobody.
        """
        columns, request = self._columns, self._request(row)
        computed = int(columns.num_computed[row])
        remaining = int(columns.num_tokens[row]) - computed
        num_tokens = self._chunk(step, remaining, computed)
        if num_tokens == 0:
            return
        drafts = 0
        if remaining == 1 and computed >= columns.num_bound[row]:
            drafts = drafts_for(int(columns.num_tokens[row]), request.limit, spare, self._config)
        if drafts and not self.kv.grow(row, computed + num_tokens + drafts):
            drafts = 0
        num_tokens += drafts
        while not self.kv.grow(row, computed + num_tokens):
            running = self.running_requests()
            victim = running[self.policy.victim(facts_of(running), request.facts)]
            self._preempt_in(step, victim)
            if victim is request:
                return
        if computed + num_tokens > columns.room[row]:
            columns.grow(row, computed + num_tokens)
        self._enter(step, request, num_tokens, num_drafts=drafts)

    def _preempt_in(self, step: TableStep, victim: TableRequest) -> None:
        assert victim.row is not None
        step.remove(victim.row)
        self.preempt(victim)
        step.has_preempted = True

    def _enter(
        self,
        step: TableStep,
        request: TableRequest,
        num_tokens: int,
        bind: BindRow | None = None,
        num_drafts: int = 0,
    ) -> None:
        columns, row = self._columns, request.row
        assert row is not None
        if bind:
            self._bind(request, bind)
        start, before = int(columns.num_computed[row]), int(columns.num_tokens[row])
        end = start + num_tokens
        step.num_reads += reads_of(start, num_tokens)
        samples = end - num_drafts == before
        step.chunks[row] = chunk = Chunk(num_tokens, end, samples, num_drafts, bind)
        columns.num_computed[row] = end
        columns.num_tokens[row] = before + chunk.num_placeholders
        step.budget -= num_tokens
        if bind or before + chunk.num_placeholders - end == 1:  # the rows that decode or prefill are others now
            self._drop_lane()

    def _commit_blocks(self, step: TableStep) -> None:
        bound = self._columns.num_bound
        if step.lane is None or step.lane.has_prompts:
            is_prompt = step.ends <= bound[step.rows]
            for row in step.rows[is_prompt].tolist():
                self.kv.commit(row, int(bound[row]))
        for row, chunk in step.chunks.items():
            if chunk.end - chunk.num_tokens < bound[row]:
                self.kv.commit(row, chunk.end)

    # --- a step comes back ---

    def update(self, done: StepDone) -> StepOutput | None:
        """Take in a step's result, in the order of the steps. Returns what to publish."""
        step = self.in_flight.popleft()
        assert step.number == done.step, f"step {done.step} came back, expected {step.number}"
        self._observe(step, done)
        output = OutputBuilder()
        if step.is_void:
            pass
        elif done.error is not None:
            self._fail_step(step, done.error, output)
        else:
            if done.failed:
                self._fail_rows(done, output)
            if done.num_drafted:
                self._take_drafts(step, done)
            self._take_tokens(step, done, output)
        self.rows.returned(self.last_returned())
        return output.build(done)

    def _take_tokens(self, step: TableStep, done: StepDone, output: OutputBuilder) -> None:
        num_rows, token_ids = len(step.rows), ints(done.token_ids)
        self._columns.num_confirmed[step.rows] = step.ends
        if done.num_new[: len(step.row_bytes)] != ONE_TOKEN * num_rows:  # rows failed, or gave nothing
            self._take_each(step, step.all_rows(), ints(done.num_new), token_ids, output)
        elif step.chunks:
            self._take_lane(step, token_ids[:num_rows], output)
            self._take_each(step, step.chunks, ints(done.num_new)[num_rows:], token_ids[num_rows:], output)
        else:
            self._take_lane(step, token_ids, output)

    def _take_lane(self, step: TableStep, token_ids: Ints, output: OutputBuilder) -> None:
        """Take in one new token of each of `step.rows`: at once, but for rows that something happens to."""
        columns, rows = self._columns, step.rows
        num_known, stops = columns.num_known[rows], step.lane.stops if step.lane else columns.stops(rows)
        is_due, is_stop = num_known >= columns.due[rows], stops == token_ids
        columns.append(rows, num_known, token_ids)
        kept = [True]
        if np.count_nonzero(is_due) or np.count_nonzero(is_stop):
            places = (is_due | is_stop.any(axis=0)).nonzero()[0]
            columns.num_known[rows[places]] = num_known[places]  # as if they had got nothing yet
            some = zip(rows[places].tolist(), token_ids[places].tolist(), strict=True)
            kept = [self._take_row(row, [token_id], None, output) > 0 for row, token_id in some]
        if all(kept):
            output.put_columns(step.row_bytes, ONE_TOKEN * len(rows), token_ids.tobytes())
        else:
            stays = np.ones(len(rows), np.bool_)
            stays[places] = kept
            output.put_columns(pack_ints(rows[stays]), ONE_TOKEN * int(stays.sum()), token_ids[stays].tobytes())

    def _take_each(
        self, step: TableStep, rows: Iterable[int], num_new: Ints, token_ids: Ints, output: OutputBuilder
    ) -> None:
        """Take in new tokens of these rows of a step, one row after the other."""
        ids, at = token_ids.tolist(), 0
        for row, count in zip(rows, num_new.tolist(), strict=True):
            kept = self._take_row(row, ids[at : at + count], step.chunks.get(row), output)
            output.add_tokens(row, ids[at : at + kept])
            at += count

    def _take_drafts(self, step: TableStep, done: StepDone) -> None:
        rows = zip(step.all_rows(), num_drafted(done), ints(done.num_new).tolist(), strict=True)
        for row, drafted, count in rows:
            request = self._requests[row]
            if drafted and count and request is not None and self.is_alive(request):
                self._count_drafts(drafted, count - 1)

    def _take_row(self, row: int, token_ids: list[int], chunk: Chunk | None, output: OutputBuilder) -> int:
        """Take in new tokens of one row, of a lane or with a chunk; returns how many of them count."""
        request, columns = self._requests[row], self._columns
        if request is None or not self.is_alive(request):
            return 0
        is_bound = request.row is not None
        if is_bound:
            columns.flush(row, request.ids)
            if chunk:
                self._confirm(row, chunk, len(request.ids), len(token_ids))
        stop = find_stop(token_ids, request.num_generated, request.admit)
        count = stop.num_tokens if stop else len(token_ids)
        request.ids.extend(token_ids[:count])
        output.announce(request, row, token_ids)
        if is_bound:
            columns.num_known[row] = len(request.ids)
        if stop:
            output.add_ended(self.finish(request, stop.reason, stop.stop_reason))
        elif is_bound and not token_ids and (chunk is None or chunk.samples):
            self.preempt(request)  # the runner gave nothing: it computes the row again from what is known
        elif is_bound:
            self._go_on(row, request, count - (chunk.num_placeholders if chunk else 1))
        return count

    def _confirm(self, row: int, chunk: Chunk, num_known: int, num_new: int) -> None:
        """Note which K/V of a row are sound, now that its chunk gave so many tokens."""
        columns = self._columns
        if chunk.num_drafts and num_new:
            columns.num_computed[row] -= chunk.num_placeholders - num_new
        sound = num_known + max(num_new, 1) - 1
        columns.num_confirmed[row] = min(sound, chunk.end) if chunk.samples else chunk.end

    def _go_on(self, row: int, request: TableRequest, num_more: int) -> None:
        """Let a row's tokens pass from here on; it got so many more than it had placeholders for."""
        if num_more:
            self._drop_lane()
            self._columns.num_tokens[row] += num_more
        if request.announced_row == row and len(request.admit.stop_ids) <= MAX_STOPS:
            self._columns.pass_on(row)

    # --- failures ---

    def _fail_rows(self, done: StepDone, output: OutputBuilder) -> None:
        """End the requests of failed rows; those that share blocks these registered recompute.

        Blocks of a request that has ended meanwhile are no sounder for that.
        """
        for failure in done.failed:
            request = self._requests[failure.row]
            if request is None:
                continue
            suspects = [self._request(row) for row in self.kv.withdraw(failure.row)]
            if self.is_alive(request):
                output.add_ended(self.finish(request, "error", error=failure.error))
            for suspect in suspects:
                self.preempt(suspect, keep_cache=False)

    def _fail_step(self, step: TableStep, error: ErrorInfo, output: OutputBuilder) -> None:
        """End the requests of a failed step; all others recompute on a runner that starts anew."""
        for row in step.all_rows():
            request = self._requests[row]
            if request is not None and self.is_alive(request):
                output.add_ended(self.finish(request, "error", error=error))
        for later in self.in_flight:
            later.is_void = True
        for request in self.running_requests():
            self.preempt(request, keep_cache=False)
        self.kv.reset()
        self.must_reset_runner = True

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests."""
        super().check_invariants()
        columns, counts = self._columns, self._count_in_flight()
        computed, tokens = columns.num_computed.copy(), columns.num_tokens.copy()
        if self._lane:
            computed[self._lane.rows], tokens[self._lane.rows] = self._lane.ends, self._lane.ends + ONE
        rows = self._running[: self._num_running]
        known = columns.num_known[rows]
        assert (columns.num_confirmed[rows] <= computed[rows]).all()
        assert (computed[rows] <= np.minimum(tokens, columns.room)[rows]).all()
        most = known + counts[rows] * (1 + self._config.num_speculative_tokens)
        assert ((known <= tokens[rows]) & (tokens[rows] <= most)).all()
        assert not np.delete(columns.due, rows).any(), "a row without a request lets tokens pass"
        for request in self.running_requests():
            assert len(request.ids) <= request.num_known < len(request.ids) + TAIL
        for step in self.in_flight:
            num_tokens = len(step.rows) + sum(chunk.num_tokens for chunk in step.chunks.values())
            assert 0 < num_tokens == step.limit - step.budget <= step.limit

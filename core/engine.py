"""EngineCore: the loop that keeps a runner busy. Decisions are the scheduler's, computing the runner's."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from headrace.core.calls import Call, GetStats, GetTrace, Pause, Ping, Reply, ResetPrefixCache, Resume
from headrace.core.channel import Inbox
from headrace.core.columns import ints
from headrace.core.errors import RequestError, RequestFailed, describe
from headrace.core.interfaces import Runner, Scheduler, StepHandle
from headrace.core.messages import Abort, Admit, FrontendGone, Refused, StepOutput, StopHit, ToCore, ToOutput
from headrace.core.progress import Progress
from headrace.core.trace import Tracer


class EngineCore:
    """Owner of the pipeline of steps in flight, and of calls that wait for it to run empty.

    depth: steps in flight, 2 with asynchronous scheduling: step N+1 is prepared while step N computes.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, publish: Callable[[ToOutput], None], depth: int) -> None:
        self.inbox: Inbox[ToCore] = Inbox()
        self._scheduler = scheduler
        self._runner = runner
        self._publish = publish
        self._depth = depth
        self._in_flight: deque[StepHandle] = deque()
        self._barriers: list[Call] = []
        self._until_idle: list[Call] = []
        self._clock = time.monotonic
        self._progress = Progress(time.monotonic)
        self._tracer = Tracer("core")

    async def run(self) -> None:
        """Serve until cancelled. An error here is a bug of the scheduler or its plugins and ends the engine."""
        scheduler, in_flight = self._scheduler, self._in_flight
        while True:
            for message in self.inbox.buffer.drain():
                self._apply(message)
            self._answer_waiting_calls()
            if not self._barriers and len(in_flight) < self._depth and self._submit_next():
                continue  # fill the pipeline before draining it
            if in_flight and in_flight[0].done():
                self._take_result()
                await asyncio.sleep(0)  # every other actor of this loop runs at least once a step
            else:
                if not in_flight and not scheduler.unfinished():
                    self._progress.rest()
                await self.inbox.wakeup.wait()

    def _submit_next(self) -> bool:
        """Put the next step in flight; False if nothing can run now."""
        start = self._clock()
        step = self._scheduler.schedule()
        if step is None:
            return False
        num_rows, num_tokens = len(step.rows) // 4, int(ints(step.num_tokens).sum())
        self._tracer.add("schedule", start, self._clock(), step.step, num_rows, num_tokens)
        self._in_flight.append(self._runner.submit(step, self.inbox.wakeup.set))
        self._progress.step_submitted()
        return True

    def _take_result(self) -> None:
        """Take in the result of the oldest step in flight and publish what came of it."""
        done = self._in_flight.popleft().result()
        start = self._clock()
        output = self._scheduler.update(done)
        updated = self._clock()
        self._publish_output(output)
        self._progress.step_returned()
        num_rows, num_tokens = len(done.num_new) // 4, len(done.token_ids) // 4
        self._tracer.add("compute", done.started, done.ended, done.step, num_rows, num_tokens, process="runner")
        self._tracer.add("wait", done.ended, start, done.step)
        self._tracer.add("update", start, updated, done.step)
        self._tracer.add("publish", updated, self._clock(), done.step)

    def _apply(self, message: ToCore) -> None:
        match message:
            case Admit():
                self._admit(message)
            case Abort():
                self._publish_output(self._scheduler.abort(message.requests))
            case StopHit():
                self._scheduler.stop(message.request, message.num_tokens)
            case FrontendGone(frontend=frontend):
                orphans = [request for request in self._scheduler.unfinished() if request.frontend == frontend]
                self._publish_output(self._scheduler.abort(orphans))
                self._publish(message)
            case Call():
                try:
                    self._call(message)
                except Exception as error:  # a plugin's own code: its call fails, the engine lives on
                    self._publish(Reply(message.frontend, message.call, error=describe(error)))
            case Refused() | Reply() | StepOutput():
                self._publish(message)
            case _:
                assert_never(message)

    def _admit(self, message: Admit) -> None:
        self._progress.work_came()
        try:
            self._scheduler.add(message)
        except RequestError as error:
            self._publish(Refused(message.request, describe(error)))
        except Exception as error:  # a policy's or KV manager's own code: its request fails, the engine lives on
            failure = RequestFailed(f"the scheduler or its plugins failed: {type(error).__name__}: {error}")
            self._publish(Refused(message.request, describe(failure)))

    def _publish_output(self, output: StepOutput | None) -> None:
        if output is not None:
            self._publish(output)

    # --- calls ---

    def _call(self, call: Call) -> None:
        match call.what:
            case GetStats():
                self._reply(call, self._scheduler.stats())
            case GetTrace(spans=spans):
                self._publish(Reply(call.frontend, call.call, value=(*spans, *self._tracer.spans()), is_trace=True))
            case Ping():
                self._reply(call, self._progress.pong())
            case Resume():
                self._progress.go_on()
                self._scheduler.pause(admissions=False, steps=False)
                self._answer_pauses()
                self._reply(call)
            case ResetPrefixCache():
                self._barriers.append(call)
            case Pause(mode="keep"):
                self._progress.is_paused = True
                self._scheduler.pause(admissions=True, steps=True)
                self._reply(call)
            case Pause(mode=mode):
                self._progress.is_paused = True
                self._scheduler.pause(admissions=True, steps=False)
                if mode == "abort":
                    self._publish_output(self._scheduler.abort(self._scheduler.unfinished()))
                self._until_idle.append(call)

    def _answer_waiting_calls(self) -> None:
        if self._in_flight:
            return
        for call in self._barriers:
            assert isinstance(call.what, ResetPrefixCache)
            try:
                self._scheduler.reset_prefix_cache(call.what.force)
            except Exception as error:
                self._publish(Reply(call.frontend, call.call, error=describe(error)))
            else:
                self._reply(call)
        self._barriers.clear()
        if self._until_idle and not self._scheduler.num_running():
            self._answer_pauses()

    def _answer_pauses(self) -> None:
        for call in self._until_idle:
            self._reply(call)
        self._until_idle.clear()

    def _reply(self, call: Call, value: object = None) -> None:
        self._publish(Reply(call.frontend, call.call, value))

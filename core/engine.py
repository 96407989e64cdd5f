"""EngineCore: the loop that keeps a runner busy. Decisions are the scheduler's, computing the runner's."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from headrace.core.channel import Inbox
from headrace.core.errors import HeadraceError, RequestError, RequestFailed, describe
from headrace.core.interfaces import Runner, Scheduler, StepHandle
from headrace.core.messages import (
    Abort,
    Admit,
    Call,
    FrontendGone,
    GetStats,
    Pause,
    Ping,
    Refused,
    Reply,
    ResetPrefixCache,
    Resume,
    StepOutput,
    StopHit,
    ToCore,
    ToOutput,
)
from headrace.core.progress import Progress


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
        self._progress = Progress(time.monotonic)

    async def run(self) -> None:
        """Serve until cancelled. An error here is a bug of the scheduler or its plugins and ends the engine."""
        scheduler, in_flight, wake = self._scheduler, self._in_flight, self.inbox.wakeup.set
        progress = self._progress
        while True:
            for message in self.inbox.buffer.drain():
                self._apply(message)
            self._answer_waiting_calls()
            if not self._barriers and len(in_flight) < self._depth and (step := scheduler.schedule()):
                in_flight.append(self._runner.submit(step, wake))
                progress.step_submitted()
                continue  # fill the pipeline before draining it
            if in_flight and in_flight[0].done():
                self._publish_output(scheduler.update(in_flight.popleft().result()))
                progress.step_returned()
                await asyncio.sleep(0)  # every other actor of this loop runs at least once a step
            else:
                if not in_flight and not scheduler.unfinished():
                    progress.rest()
                await self.inbox.wakeup.wait()

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
                self._call(message)
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
        except Exception as error:  # a policy's own code: its request fails, the engine lives on
            failure = RequestFailed(f"the scheduling policy failed: {type(error).__name__}: {error}")
            self._publish(Refused(message.request, describe(failure)))

    def _publish_output(self, output: StepOutput | None) -> None:
        if output is not None:
            self._publish(output)

    # --- calls ---

    def _call(self, call: Call) -> None:
        match call.what:
            case GetStats():
                self._reply(call, self._scheduler.stats())
            case Ping():
                self._reply(call, self._progress.pong())
            case Resume():
                self._progress.is_paused = False
                self._scheduler.pause(admissions=False, steps=False)
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
            except HeadraceError as error:
                self._publish(Reply(call.frontend, call.call, error=describe(error)))
            else:
                self._reply(call)
        self._barriers.clear()
        if self._until_idle and not self._scheduler.num_running():
            for call in self._until_idle:
                self._reply(call)
            self._until_idle.clear()

    def _reply(self, call: Call, value: object = None) -> None:
        self._publish(Reply(call.frontend, call.call, value))

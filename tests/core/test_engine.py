"""The core's loop with a scheduler that a test plays."""

import asyncio

import pytest
from engines import run

from headrace.core.calls import Call, GetStats, Pause, Reply, ResetPrefixCache, Resume
from headrace.core.engine import EngineCore


class PlayedScheduler:
    """Never schedules; has as many running requests as the test says."""

    def __init__(self):
        self.running = 0
        self.is_broken = False

    def schedule(self):
        return None

    def unfinished(self):
        return []

    def num_running(self):
        return self.running

    def pause(self, *, admissions, steps):
        pass

    def abort(self, requests):
        return None

    def stats(self):
        if self.is_broken:
            raise ZeroDivisionError("in stats")
        return "fine"

    def reset_prefix_cache(self, force):
        if self.is_broken:
            raise ZeroDivisionError("in reset")


class Core:
    def __init__(self):
        self.scheduler = PlayedScheduler()
        self.replies = asyncio.Queue()
        self.core = EngineCore(self.scheduler, None, self.replies.put_nowait, depth=2)

    async def __aenter__(self):
        self.task = asyncio.create_task(self.core.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait([self.task])

    async def ask(self, *calls):
        self.core.inbox.send(*(Call(0, number, what) for number, what in enumerate(calls, start=1)))
        await asyncio.sleep(0)


def test_a_pause_that_waits_is_answered_when_work_goes_on():
    async def test():
        async with Core() as core:
            core.scheduler.running = 1
            await core.ask(Pause("wait"), Pause("abort"), Resume())
            assert [(await core.replies.get()).call for _ in range(3)] == [1, 2, 3]

    run(test)


@pytest.mark.parametrize("what", [GetStats(), ResetPrefixCache()])
def test_a_call_that_raises_hands_its_error_back_and_the_engine_lives_on(what):
    async def test():
        async with Core() as core:
            core.scheduler.is_broken = True
            await core.ask(what)
            reply = await core.replies.get()
            assert reply.error.message.startswith("ZeroDivisionError: in ")
            core.scheduler.is_broken = False
            await core.ask(what)
            assert (await core.replies.get()) in (Reply(0, 1, "fine"), Reply(0, 1))

    run(test)

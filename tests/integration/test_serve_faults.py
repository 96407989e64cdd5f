"""Deaths and signals of `headrace serve`, seen by clients. Outputs are `kvhash`'s, so that they are exact."""

import asyncio
import itertools
import json
import os
import signal
import time
import urllib.error
import urllib.request

import pytest
from commands import Reading, finish, is_alive, serving, start, until
from engines import HANG_GUARD_S, run

ENDLESS = 100_000
ROLES = ("core", "input", "output", "worker")


def cases(every, *in_ci):
    """Parametrize with the cases of CI, which guard against hangs only, and every case of verify, with real limits."""
    verify = [pytest.param(*case, True, marks=pytest.mark.verify) for case in every]
    return [*((*case, False) for case in in_ci), *verify]


class Within:
    """Checks that something was done in time, where the machine is there for it."""

    def __init__(self, limit_s, is_strict):
        self.limit_s = limit_s if is_strict else HANG_GUARD_S

    def __enter__(self):
        self.started = time.monotonic()

    def __exit__(self, kind, error, at):
        assert kind or time.monotonic() - self.started < self.limit_s


def health(address):
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            return answer.status, json.load(answer)["status"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["status"]


async def in_thread(function, *given):
    return await asyncio.to_thread(function, *given)


@pytest.mark.parametrize(("role", "is_strict"), cases([(role,) for role in ROLES], ("core",)))
def test_F01_sixteen_streams_survive_the_death_of_any_process(role, is_strict):
    async def test():
        readings = [Reading([number, 1, 2], 600) for number in range(16)]
        await start(served.address, *readings)
        before = served.pids()
        with Within(10, is_strict):
            served.kill(role)
            await finish(*readings)
        assert [reading.prompt for reading in readings if not reading.is_whole()] == []
        assert not set(before) & set(served.pids())
        assert not any(map(is_alive, before))
        await in_thread(until, served.is_idle)

    with serving() as served:
        run(test)


@pytest.mark.verify
@pytest.mark.parametrize(("runner", "max_tokens"), [("torch", 16), ("native", 60)])
def test_F01_a_real_model_goes_on_with_the_same_text(runner, max_tokens, smollm2):
    async def test():
        prompts = [f"Once upon a time there were {i + 2} friends who" for i in range(16)]
        whole, disturbed = ([Reading(prompt, max_tokens) for prompt in prompts] for _ in range(2))
        await start(served.address, *whole)
        await finish(*whole)
        await start(served.address, *disturbed)
        served.kill("core")
        await finish(*disturbed)
        assert [reading.text for reading in disturbed] == [reading.text for reading in whole]
        assert len({reading.text for reading in whole}) > 8

    options = ("--runner", runner, "--tokenizer", "huggingface", "--max-model-len", "1024", "--num-kv-blocks", "512")
    with serving(str(smollm2), *options, "--deterministic") as served:
        run(test)


@pytest.mark.parametrize(("count", "is_strict"), cases([(1,), (2,)], (1,)))
def test_F01_when_restarts_run_out_clients_get_an_error_and_the_command_ends(count, is_strict):
    async def test():
        readings = [Reading([number], ENDLESS) for number in range(4)]
        await start(served.address, *readings)
        with Within(5, is_strict):
            served.kill("core")
            await finish(*readings)
        assert all("core process ended" in reading.error for reading in readings)
        assert await in_thread(served.process.wait, HANG_GUARD_S) == 1

    with serving("--max-restarts", "0", "--api-server-count", str(count)) as served:
        run(test)


@pytest.mark.parametrize(
    ("when", "count", "is_strict"), cases(itertools.product(("idle", "streaming"), (1, 2)), ("streaming", 2))
)
def test_F02_nothing_outlives_the_command(when, count, is_strict):
    async def stream():
        await start(served.address, reading)
        served.process.kill()
        await finish(reading)
        assert reading.error is not None

    reading = Reading([1], ENDLESS)
    with serving("--api-server-count", str(count)) as served:
        children = served.pids()
        assert len(children) == 4 + (count if count > 1 else 0)
        if when == "streaming":
            run(stream)
        else:
            served.process.kill()
        with Within(10, is_strict):
            until(lambda: not any(map(is_alive, children)))
        until(lambda: not served.folders())
        with serving("--port", served.address.rsplit(":", 1)[1]) as again:
            assert again.address == served.address


@pytest.mark.verify
def test_F02_children_leave_when_the_command_is_killed_while_loading():
    with serving(waits=False) as served:
        until(lambda: len(served.pids()) == 4)
        children = served.pids()
        served.process.kill()
        with Within(10, True):
            until(lambda: not any(map(is_alive, children)))
        until(lambda: not served.folders())


@pytest.mark.parametrize("is_strict", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_F03_a_core_that_is_stopped_is_told_and_streams_wait_for_it(is_strict):
    async def test():
        readings = [Reading([number], 600) for number in range(4)]
        await start(served.address, *readings)
        (core,) = served.pids("core")
        os.kill(core, signal.SIGSTOP)
        try:
            with Within(2, is_strict):
                assert await in_thread(health, served.address) == (503, "silent")
            assert not any(reading.task.done() and not reading.is_whole() for reading in readings)
        finally:
            os.kill(core, signal.SIGCONT)
        await finish(*readings)
        assert [reading.prompt for reading in readings if not reading.is_whole()] == []
        assert await in_thread(health, served.address) == (200, "ok")

    with serving() as served:
        run(test)


@pytest.mark.parametrize(
    ("name", "when", "count", "is_strict"),
    cases(
        itertools.product(("SIGINT", "SIGTERM"), ("loading", "idle", "streaming"), (1, 2)),
        ("SIGINT", "loading", 1),
        ("SIGINT", "streaming", 2),
        ("SIGTERM", "loading", 2),
        ("SIGTERM", "streaming", 1),
    ),
)
def test_F13_signals_end_the_command_whatever_it_does(name, when, count, is_strict):
    async def test():
        if when == "streaming":
            await start(served.address, *readings)
        with Within(10, is_strict):
            with Within(5, is_strict):
                served.process.send_signal(getattr(signal, name))
                await finish(*readings)
            assert await in_thread(served.process.wait, HANG_GUARD_S) == 0

    readings = [Reading([number], ENDLESS) for number in range(4)]
    options = ("--drain-timeout", "1", "--api-server-count", str(count))
    with serving(*options, waits=when != "loading") as served:
        until(lambda: len(served.pids()) >= 4)
        children = served.pids()
        run(test)
        assert not any(map(is_alive, children))
        assert not served.folders()
        if when == "streaming":
            assert {reading.finish_reason for reading in readings} == {"abort"}
    if served.address:
        with serving("--port", served.address.rsplit(":", 1)[1]):
            pass


@pytest.mark.verify
@pytest.mark.parametrize("count", [1, 2])
def test_F13_a_core_that_hangs_keeps_nobody_waiting_for_the_end(count):
    async def test():
        readings = [Reading([number], ENDLESS) for number in range(4)]
        await start(served.address, *readings)
        children = served.pids()
        os.kill(served.pids("core")[0], signal.SIGSTOP)
        with Within(10, True):
            with Within(5, True):
                served.process.send_signal(signal.SIGINT)
                await finish(*readings)
            assert await in_thread(served.process.wait, HANG_GUARD_S) == 0
        assert all(reading.error for reading in readings)
        assert not any(map(is_alive, children))

    with serving("--api-server-count", str(count)) as served:
        run(test)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.verify), 2])
def test_F14_sigterm_lets_streams_end(count):
    async def test():
        readings = [Reading([number], 1500) for number in range(2 * count)]
        await start(served.address, *readings)
        served.process.terminate()
        await finish(*readings)
        assert [reading.prompt for reading in readings if not reading.is_whole()] == []
        assert await in_thread(served.process.wait, HANG_GUARD_S) == 0

    with serving("--api-server-count", str(count)) as served:
        run(test)


async def through(server, served, *readings):
    """Begin streams through one of two server processes: the other one is stopped meanwhile."""
    (other,) = set(served.pids("server")) - {server}
    os.kill(other, signal.SIGSTOP)
    try:
        await start(served.address, *readings)
    finally:
        os.kill(other, signal.SIGCONT)


@pytest.mark.verify
def test_when_restarts_of_server_processes_run_out_the_others_end_their_streams_first():
    async def test():
        dying, living = served.pids("server")
        reading = Reading([3], 1500)
        await through(living, served, reading)
        os.kill(dying, signal.SIGKILL)
        await finish(reading)
        assert reading.is_whole()
        assert await in_thread(served.process.wait, HANG_GUARD_S) == 1

    with serving("--max-restarts", "0", "--api-server-count", "2") as served:
        run(test)


def test_a_server_process_that_dies_aborts_its_own_requests_only():
    async def test():
        dying, living = served.pids("server")
        engine = set(served.pids()) - {dying, living}
        lost = [Reading([number], ENDLESS) for number in range(8)]
        kept = [Reading([number, 5], 1500) for number in range(4)]
        await through(dying, served, *lost)
        await through(living, served, *kept)
        os.kill(dying, signal.SIGKILL)
        await finish(*lost, *kept)
        assert all(reading.error for reading in lost)
        assert [reading.prompt for reading in kept if not reading.is_whole()] == []
        await in_thread(until, lambda: served.metric("request_success_total", finished_reason="abort") == 8)
        await in_thread(until, served.is_idle)
        await in_thread(until, lambda: len(served.pids("server")) == 2)
        assert engine < set(served.pids())
        (new,) = set(served.pids("server")) - {living}
        again = Reading([3], 20)
        await through(new, served, again)
        await finish(again)
        assert again.is_whole()
        served.kill("core")
        later = Reading([4], 20)
        await start(served.address, later)
        await finish(later)
        assert later.is_whole()

    with serving("--api-server-count", "2") as served:
        run(test)

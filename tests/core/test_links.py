"""Links between processes: here between threads of one, which ZeroMQ doesn't know from processes."""

import asyncio
import itertools
import subprocess
import sys
import threading
import time

import pytest
import uvloop
import zmq
from engines import HANG_GUARD_S

from headrace.core.channel import Inbox
from headrace.core.errors import ConfigError
from headrace.core.links import Inbound, Outbound, check_path
from headrace.core.messages import Abort, RequestId, Submit
from headrace.core.params import SamplingParams
from headrace.core.prompts import TextPrompt

KIND = Abort | Submit
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def message(number):
    return Abort((RequestId(0, number, 0),))


def numbers(messages):
    return [given.requests[0].counter for given in messages]


class Links:
    """Both ends of any number of links; closed at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.context = zmq.Context()
        self.open = []

    def inbound(self, name, deliver):
        self.open.append(Inbound(self.context, self.folder / name, KIND, deliver))
        return self.open[-1]

    def outbound(self, name):
        self.open.append(Outbound(self.context, self.folder / name))
        return self.open[-1]


@pytest.fixture
def links(tmp_path):
    made = Links(tmp_path)
    yield made
    for link in made.open:
        link.close()
    made.context.destroy(linger=0)


class Taken:
    """What came, and a wait for so many."""

    def __init__(self):
        self.messages = []
        self.condition = threading.Condition()

    def deliver(self, messages):
        with self.condition:
            self.messages += messages
            self.condition.notify_all()

    def wait(self, count):
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.messages) >= count, HANG_GUARD_S)
        return self.messages


def test_messages_of_one_sender_come_in_order_and_whole_frames(links):
    taken = Taken()
    links.inbound("a", taken.deliver)
    out = links.outbound("a")
    out.send(message(0))
    out.send(message(1), message(2))
    assert numbers(taken.wait(3)) == [0, 1, 2]


def test_what_is_sent_before_the_other_end_is_there_arrives(links):
    taken = Taken()
    out = links.outbound("a")
    for number in range(100):
        out.send(message(number))
    links.inbound("a", taken.deliver)
    assert numbers(taken.wait(100)) == list(range(100))


def test_many_threads_may_send_and_each_one_s_order_is_kept(links):
    taken = Taken()
    links.inbound("a", taken.deliver)
    out = links.outbound("a")

    def send(sender):
        for number in range(500):
            out.send(Abort((RequestId(sender, number, 0),)))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    messages = taken.wait(2000)
    for thread in threads:
        thread.join()
    for sender in range(4):
        assert numbers(m for m in messages if m.requests[0].frontend == sender) == list(range(500))


def test_after_closing_messages_are_dropped_and_closing_again_is_harmless(links):
    taken = Taken()
    inbound, out = links.inbound("a", taken.deliver), links.outbound("a")
    for link in (out, inbound, out, inbound):
        link.close()
    out.send(message(1))
    assert taken.messages == []


def test_F05_a_path_too_long_for_a_socket_is_told(tmp_path):
    with pytest.raises(ConfigError, match="over 107 bytes; set TMPDIR"):
        check_path(tmp_path / ("d" * 107))


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.verify)])
@pytest.mark.parametrize("loop", LOOPS)
def test_F12_no_ping_pong_is_the_last_one(links, loop, count):
    """One message at a time is on its way: a wake-up that is lost hangs."""
    there, back, done = Inbox(), Inbox(), asyncio.Event()
    links.inbound("there", there.buffer.extend)
    links.inbound("back", back.buffer.extend)
    ping, pong = links.outbound("there"), links.outbound("back")

    def answer(messages):
        for given in messages:
            pong.send(given)

    def next_one(messages):
        (number,) = numbers(messages)
        if number == count:
            done.set()
        else:
            ping.send(message(number + 1))

    async def play():
        async with asyncio.timeout(5 * HANG_GUARD_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(there.serve(answer)), group.create_task(back.serve(next_one))]
            ping.send(message(1))
            await done.wait()
            for task in tasks:
                task.cancel()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(play())


@pytest.mark.parametrize("pause_s", [0.1, pytest.param(5, marks=pytest.mark.verify)])
def test_F12_a_consumer_that_pauses_blocks_nobody_and_gets_everything(links, pause_s):
    inbox, taken = Inbox(), []
    links.inbound("a", inbox.buffer.extend)
    out = links.outbound("a")

    async def consume():
        serving = asyncio.create_task(inbox.serve(taken.extend))
        await asyncio.sleep(0)
        started = time.monotonic()
        for number in range(5000):
            out.send(message(number))
        sent = time.monotonic()
        time.sleep(pause_s)  # noqa: ASYNC251 - the whole loop is held up
        resumed = time.monotonic()
        while len(taken) < 5000:  # noqa: ASYNC110 - yields only
            await asyncio.sleep(0)
        serving.cancel()
        return sent - started, time.monotonic() - resumed

    sending_s, catching_up_s = asyncio.run(asyncio.wait_for(consume(), HANG_GUARD_S))
    assert numbers(taken) == list(range(5000))
    if pause_s == 5:
        assert (sending_s < 1, catching_up_s < 1) == (True, True)


@pytest.mark.parametrize("size", [2**20, pytest.param(2**26, marks=pytest.mark.verify)])
def test_F12_a_large_message_arrives_and_holds_up_neither_loop_nor_others(links, size):
    inbox, taken, ticks, came = Inbox(), [], [], asyncio.Event()
    links.inbound("a", inbox.buffer.extend)
    out, other = links.outbound("a"), links.outbound("a")
    large = Submit(RequestId(0, 0, 0), TextPrompt("x" * size), SamplingParams())

    def take(messages):
        taken.extend(messages)
        if len(taken) == 2:
            came.set()

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def test():
        tasks = [asyncio.create_task(inbox.serve(take)), asyncio.create_task(tick())]
        await asyncio.to_thread(out.send, large)
        other.send(message(1))
        await came.wait()
        for task in tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(test(), HANG_GUARD_S))
    assert message(1) in taken
    assert large in taken
    if size == 2**26:
        assert max(later - earlier for earlier, later in itertools.pairwise(ticks)) < 1


def test_F10_a_process_with_unsent_messages_leaves_at_once(tmp_path):
    script = (
        "import sys, time, zmq\n"
        "from pathlib import Path\n"
        "from headrace.core.links import Outbound\n"
        "from headrace.core.messages import Abort, RequestId\n"
        "out = Outbound(zmq.Context(), Path(sys.argv[1]) / 'nobody')\n"
        "for number in range(100):\n"
        "    out.send(Abort((RequestId(0, number, 0),) * 1000))\n"
        "print(time.time(), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=HANG_GUARD_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.time() - float(done.stdout) < HANG_GUARD_S

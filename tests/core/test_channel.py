import asyncio
import threading

from engines import run

from headrace.core.channel import DoubleBuffer, Inbox, Wakeup


def test_nothing_is_lost_or_doubled_between_many_threads_and_a_loop():
    senders, per_sender = 8, 2000

    async def test():
        inbox = Inbox()
        received = []
        done = asyncio.Event()

        def handle(messages):
            received.extend(messages)
            if len(received) == senders * per_sender:
                done.set()

        def send(sender):
            for i in range(0, per_sender, 2):
                inbox.send((sender, i))
                inbox.send((sender, i + 1))

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
        serving = asyncio.create_task(inbox.serve(handle))
        for thread in threads:
            thread.start()
        await done.wait()
        for thread in threads:
            thread.join()
        serving.cancel()
        assert len(received) == senders * per_sender
        for sender in range(senders):
            assert [i for who, i in received if who == sender] == list(range(per_sender))

    run(test)


def test_a_busy_consumer_is_woken_once_per_swap():
    wakes = []
    buffer = DoubleBuffer(lambda: wakes.append(1))
    for item in range(100):
        buffer.append(item)
    buffer.extend([100, 101])
    assert buffer.drain() == list(range(102))
    assert len(wakes) == 1
    assert buffer.drain() == []
    buffer.extend([])
    assert len(wakes) == 1
    buffer.append(1)
    assert len(wakes) == 2


def test_waking_a_sleeper_whose_loop_has_closed_does_nothing():
    wakeup = Wakeup()
    loop = asyncio.new_event_loop()
    sleeping = loop.create_task(wakeup.wait())
    loop.run_until_complete(asyncio.sleep(0, result=None))
    sleeping.cancel()
    loop.run_until_complete(asyncio.wait([sleeping]))
    loop.close()
    wakeup.set()


def test_a_wake_up_before_the_wait_is_not_lost():
    async def test():
        wakeup = Wakeup()
        wakeup.set()
        await wakeup.wait()
        waiting = asyncio.create_task(wakeup.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        threading.Thread(target=wakeup.set).start()
        await waiting

    run(test)


def test_a_cancelled_wait_leaves_the_next_one_sound():
    async def test():
        wakeup = Wakeup()
        waiting = asyncio.create_task(wakeup.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        wakeup.set()
        await wakeup.wait()

    run(test)

"""How messages and wake-ups cross thread boundaries onto an event loop. Not here: what the messages are."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Wakeup:
    """One sleeper on a loop, woken from any thread. Nothing polls; a set() before the wait isn't lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the sleeper, or let its next wait return at once. A closed loop is ignored: nobody sleeps there."""
        with self._lock:
            self._is_set = True
            waiter, loop = self._waiter, self._loop
            self._waiter = None
        if waiter is None or loop is None:
            return
        with contextlib.suppress(RuntimeError):
            if asyncio._get_running_loop() is loop:  # it is awake: nothing needs to be written to a socket and read
                _release(waiter)
            else:
                loop.call_soon_threadsafe(_release, waiter)

    async def wait(self) -> None:
        """Sleep until set() was called since the last wait; in any case, other tasks of the loop run in between."""
        loop = asyncio.get_running_loop()
        with self._lock:
            is_set, self._is_set = self._is_set, False
            if not is_set:
                self._loop = loop
                self._waiter = waiter = loop.create_future()
        if is_set:
            await asyncio.sleep(0)
            return
        await waiter
        with self._lock:
            self._is_set = False


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class DoubleBuffer(Generic[T]):
    """Hand items from any thread to one consumer: two lists, swapped; one wake-up per swap.

    The consumer is woken only by the first item after its last drain, so that a busy consumer costs nothing.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._back: list[T] = []

    def append(self, item: T) -> None:
        """Add one item, behind all earlier ones of the same thread."""
        with self._lock:
            is_first = not self._back
            self._back.append(item)
        if is_first:
            self._wake()

    def extend(self, items: Iterable[T]) -> None:
        """Add items in their order, as one."""
        items = list(items)
        if not items:
            return
        with self._lock:
            is_first = not self._back
            self._back.extend(items)
        if is_first:
            self._wake()

    def drain(self) -> list[T]:
        """Take everything that has come; empty if nothing has."""
        with self._lock:
            front, self._back = self._back, []
        return front


class Inbox(Generic[T]):
    """A DoubleBuffer whose consumer sleeps while it is empty. `wakeup` may have other reasons to wake it too."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self.buffer: DoubleBuffer[T] = DoubleBuffer(self.wakeup.set)

    def send(self, *messages: T) -> None:
        """Deliver messages in order; never blocks, from any thread."""
        self.buffer.extend(messages)

    async def serve(self, handle: Callable[[list[T]], None]) -> None:
        """Give all that comes to `handle`, batch by batch, until cancelled. An error of `handle` ends it."""
        while True:
            await self.wakeup.wait()
            if messages := self.buffer.drain():
                handle(messages)

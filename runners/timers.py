"""Calls at points in time: on the real clock by a thread, on a virtual one when it is moved."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue


class TimerThread:
    """Calls on time.monotonic(): one daemon thread that waits for one absolute deadline after the other.

    Deadlines come in rising order. The thread starts at the first one.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[float, Callable[[], None]] | None] = SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def call_at(self, deadline: float, function: Callable[[], None]) -> None:
        """Call `function` on the timer's thread once time.monotonic() reads `deadline`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="headrace-timer", daemon=True)
            self._thread.start()
        self._calls.put((deadline, function))

    def close(self) -> None:
        """Call nothing any more, wake the thread and wait for its end; idempotent."""
        self._closed.set()
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            deadline, function = call
            if self._closed.wait(max(0.0, deadline - time.monotonic())):
                return
            function()


class VirtualClock:
    """A Clock whose time passes only when it is told to, and calls that are due then. For one thread."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def call_at(self, deadline: float, function: Callable[[], None]) -> None:
        """Call `function` when the time is moved to `deadline` or past it; equal deadlines in the order they came."""
        heapq.heappush(self._calls, (deadline, next(self._order), function))

    def next_deadline(self) -> float | None:
        """Return when the next call is due; None if none waits."""
        return self._calls[0][0] if self._calls else None

    def advance(self, to: float) -> None:
        """Move the time forward, and make each call that falls due at its own time. Raises ValueError if it is past."""
        if to < self._now:
            raise ValueError(f"time is {self._now} s, it can't go back to {to} s")
        while self._calls and self._calls[0][0] <= to:
            deadline, _, function = heapq.heappop(self._calls)
            self._now = max(self._now, deadline)
            function()
        self._now = to

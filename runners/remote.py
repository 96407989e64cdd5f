"""A runner in a process of its own: steps go there by one link and come back by another."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headrace.core.interfaces import Runner, StepHandle
from headrace.core.links import Outbound
from headrace.core.messages import RunnerReady, RunStep, StepDone


class RemoteRunner:
    """The core's side: a Runner whose steps are computed by the process at the other end.

    `take` gets what that process sends. If it dies, its steps never end: the launcher then starts the engine anew.
    """

    def __init__(self, facts: RunnerReady, to_worker: Outbound[RunStep]) -> None:
        self._facts = facts
        self._to_worker = to_worker
        self._in_flight: deque[tuple[Future[StepDone], Callable[[], None]]] = deque()

    def load(self) -> RunnerReady:
        """Return the facts of the runner, which is loaded already."""
        return self._facts

    def submit(self, step: RunStep, wake: Callable[[], None]) -> StepHandle:
        """Send a step off; `wake` is called on the link's thread when its result is there."""
        future: Future[StepDone] = Future()
        self._in_flight.append((future, wake))
        self._to_worker.send(step)
        return future

    def take(self, results: list[StepDone]) -> None:
        """Take results, which come in the order of the steps."""
        for done in results:
            future, wake = self._in_flight.popleft()
            future.set_result(done)
            wake()

    def close(self) -> None:
        """Close the way to the worker."""
        self._to_worker.close()


class StepServer:
    """The worker's side: gives steps to a runner and sends each result as soon as it is there."""

    def __init__(self, runner: Runner, to_core: Outbound[StepDone]) -> None:
        self._runner = runner
        self._to_core = to_core
        self._in_flight: deque[StepHandle] = deque()
        self._lock = threading.Lock()

    def take(self, steps: list[Any]) -> None:
        """Submit steps, on the link's thread."""
        for step in steps:
            handle = self._runner.submit(step, self._send_results)
            with self._lock:  # not around submit: it may hold a lock of its own while it calls back
                self._in_flight.append(handle)
        self._send_results()

    def _send_results(self) -> None:
        with self._lock:
            while self._in_flight and self._in_flight[0].done():
                self._to_core.send(self._in_flight.popleft().result())

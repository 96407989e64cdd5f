"""The usual base of scheduling policies: a heap of waiting requests, ordered by one method."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from headrace.core.interfaces import PolicyArgs, RequestFacts
from headrace.core.messages import FinishReason, RequestId


class HeapPolicy(ABC):
    """Orders waiting requests by `key`. A policy of your own is often this class with one method.

    Everything else may be overridden: `victim` (whom to preempt), `on_finish` (an observer), `Args` (what requests may
    pass as policy_args), or `candidates` (the whole order).
    """

    Args: type[PolicyArgs] = PolicyArgs

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._waiting: dict[RequestId, _Entry] = {}

    @abstractmethod
    def key(self, request: RequestFacts) -> Any:
        """Return what orders the queue: the smallest runs first, equal ones in the order of submission.

        Read once, when the request is queued or comes back after a preemption.
        """

    def add(self, request: RequestFacts) -> None:
        """Queue a request: a new one, or a preempted one that comes back."""
        entry = _Entry((self.key(request), request.order), request)
        heapq.heappush(self._heap, entry)
        self._waiting[request.id] = entry

    def remove(self, request: RequestFacts) -> None:
        """Take a request out of the queue: it was admitted, or ended while waiting."""
        del self._waiting[request.id]
        if len(self._heap) > 2 * len(self._waiting) + 64:  # removed entries stay until reached: keep them few
            self._heap = [entry for entry in self._heap if self._is_waiting(entry)]
            heapq.heapify(self._heap)

    def candidates(self, now: float) -> Generator[RequestFacts]:
        """Yield waiting requests, the next to run first. Those still waiting at the end stay in the queue."""
        pulled = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                if self._is_waiting(entry):
                    pulled.append(entry)
                    yield entry.request
        finally:
            for entry in pulled:
                if self._is_waiting(entry):
                    heapq.heappush(self._heap, entry)

    def victim(self, running: Sequence[RequestFacts], for_request: RequestFacts) -> int:
        """Choose the worst by (priority, arrival)."""
        return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival, running[i].order))

    def on_finish(self, request: RequestFacts, reason: FinishReason) -> None:  # noqa: B027
        """Observe that a request ended: nothing to do here."""

    def _is_waiting(self, entry: "_Entry") -> bool:
        return self._waiting.get(entry.request.id) is entry


class _Entry:
    """A place in the heap; a request that is queued again gets a new one, and the old one is dead."""

    __slots__ = ("order", "request")

    def __init__(self, order: tuple[Any, int], request: RequestFacts) -> None:
        self.order = order
        self.request = request

    def __lt__(self, other: "_Entry") -> bool:
        return self.order < other.order

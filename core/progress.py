"""Whether the core gets on with its work, for health checks. No asyncio."""

from collections import deque
from collections.abc import Callable

from headrace.core.calls import Pong


class Progress:
    """Notes when steps come and go. Owner: EngineCore."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_paused = False
        """Waiting requests are held back on purpose."""
        self._clock = clock
        self._moved = clock()
        self._is_idle = True
        self._submitted: deque[float] = deque()

    def work_came(self) -> None:
        """Note a new request: after a rest, its wait counts from now."""
        if self._is_idle:
            self._is_idle = False
            self._moved = self._clock()

    def go_on(self) -> None:
        """Note the end of a pause: the wait of requests it held back counts from now."""
        self.is_paused = False
        self._moved = self._clock()

    def step_submitted(self) -> None:
        """Note a step that went to the runner."""
        self._moved = self._clock()
        self._submitted.append(self._moved)

    def step_returned(self) -> None:
        """Note that the oldest step came back."""
        self._moved = self._clock()
        self._submitted.popleft()

    def rest(self) -> None:
        """Note that no request is left."""
        self._is_idle = True

    def pong(self) -> Pong:
        """Return the ages as they are now."""
        now = self._clock()
        is_waiting = not self._is_idle and not self.is_paused
        step_age_s = now - self._submitted[0] if self._submitted else 0.0
        return Pong(ready_age_s=now - self._moved if is_waiting else 0.0, step_age_s=step_age_s)

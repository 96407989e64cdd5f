"""What all endpoints share: the engine, the requests that are open, and whether the server takes more."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

from headrace.ask import Ask
from headrace.core.errors import EngineClosed
from headrace.engine import Engine
from headrace.server.errors import HttpError
from headrace.server.metrics import Metrics, Observed
from headrace.server.options import ServerOptions
from headrace.stream import Streams

LEAVING = "the server is shutting down; send the request to another one"
ABORT_DEADLINE_S = 3.0
"""How long aborted requests may take to say their last chunk."""


class Service:
    """Owner of the open HTTP requests of one server process.

    root: what the model is, for /v1/models. recommended: values of sampling fields that requests leave out.
    """

    def __init__(
        self, engine: Engine, options: ServerOptions, root: str = "headrace", recommended: Mapping[str, float] = {}
    ) -> None:
        self.engine = engine
        self.recommended = recommended
        self.options = options
        self.root = root
        self.started = int(time.time())
        self.metrics = Metrics(options.model_names[0], lambda: self._num_open)
        self.is_draining = False
        self._num_open = 0
        self._running: set[Streams] = set()
        self._reading: set[asyncio.Timeout] = set()
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()

    @property
    def model(self) -> str:
        """The name that answers carry."""
        return self.options.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raise HttpError 404 on a name that isn't served."""
        if name is not None and name not in self.options.model_names:
            served = ", ".join(self.options.model_names)
            raise HttpError(404, f"model is {name!r:.80}, served is {served}", "model", "model_not_found")

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count an HTTP request as open. Raises EngineClosed while draining, HttpError 429 past the limit."""
        if self.is_draining:
            raise EngineClosed(LEAVING)
        limit = self.options.max_open_requests
        if limit is not None and self._num_open >= limit:
            text = f"{self._num_open} requests are open, limit is {limit} (--max-open-requests); try again later"
            raise HttpError(429, text, code="too_many_requests")
        self._num_open += 1
        self._is_quiet.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._is_quiet.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait for the rest of a request. Raises EngineClosed if it isn't there when open requests are aborted."""
        try:
            async with asyncio.timeout(None) as wait:
                self._reading.add(wait)
                try:
                    yield
                finally:
                    self._reading.discard(wait)
        except TimeoutError:
            raise EngineClosed(LEAVING) from None

    @asynccontextmanager
    async def running(self, asks: Sequence[Ask], streams: Streams) -> AsyncIterator[Observed]:
        """Read requests of the engine, measured; leaving ends what of them is still open."""
        self._running.add(streams)
        try:
            yield Observed(self.metrics, asks, streams)
        finally:
            self._running.discard(streams)
            await streams.aclose()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, let the open ones end, and abort those that are left after `timeout_s`.

        An engine that doesn't answer is closed, so that they end with an error.
        """
        self.is_draining = True
        if await self._wait_quiet(timeout_s):
            return
        for wait in list(self._reading):
            wait.reschedule(asyncio.get_running_loop().time())
        for streams in list(self._running):
            await streams.abort()
        if not await self._wait_quiet(ABORT_DEADLINE_S):
            await self.engine.close()

    async def _wait_quiet(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._is_quiet.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

"""What a user iterates over: the chunks of one request, or of several. Leaving it early aborts the request."""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType

from headrace.core.errors import BatchRefused, HeadraceError, RequestFailed
from headrace.frontend import Frontend, OpenRequest, total_usage
from headrace.outputs import Chunk, Completion, Result, Timings, join


class Stream:
    """Asynchronous iterator over the chunks of one request.

    Dropping it, `aclose()` or leaving its `async with` ends the request early. Raises RequestError where the request
    was refused or failed, EngineClosed where the engine went away; chunks that came before are yielded first.
    """

    def __init__(self, frontend: Frontend, request: OpenRequest) -> None:
        self._frontend = frontend
        self._request = request
        self._ready: deque[Chunk] = deque()
        self._has_raised = False

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Chunk:
        request = self._request
        while not self._ready:
            self._ready.extend(request.take())
            if self._ready:
                break
            if request.error is not None and not self._has_raised:
                self._has_raised = True
                raise request.error
            if request.ended is not None or request.is_dropped:
                raise StopAsyncIteration
            await request.wake.wait()
        return self._ready.popleft()

    async def result(self) -> Result:
        """Read the stream to its end and return all that comes as one. Raises RequestFailed where nothing comes."""
        parts: dict[int, list[Chunk]] = {}
        async for chunk in self:
            parts.setdefault(chunk.index, []).append(chunk)
        chunks = [join(parts[index]) for index in sorted(parts)]
        if not chunks or not all(chunk.finish_reason for chunk in chunks):
            raise RequestFailed("the stream was closed, or read to its end before: nothing is left for a result")
        return Result(
            completions=[_completion(chunk) for chunk in chunks],
            usage=total_usage([chunk.usage for chunk in chunks if chunk.usage is not None]),
            timings=self._request.timings(),
            prompt_logprobs=chunks[0].prompt_logprobs,
        )

    def timings(self) -> Timings:
        """Return the request's times, as far as it has come."""
        return self._request.timings()

    async def abort(self) -> None:
        """End the request; the stream goes on to its last chunk, whose finish_reason is abort."""
        self._frontend.abort(self._request, drop=False)

    async def aclose(self) -> None:
        """End the request and the stream; harmless when it has ended."""
        self._ready.clear()
        self._frontend.abort(self._request, drop=True)

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._frontend.drop(self._request)


class Streams:
    """Asynchronous iterator over several streams as one, such as those of one `Engine.submit`.

    Yields lists of (place in the list of streams, chunk): all that has come since the last time. Raises as Stream does,
    the error of the request at fault first. Takes the streams over: read them here only.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self._open = dict(enumerate(stream._request for stream in streams))
        self._wake = asyncio.Event()
        for request in self._open.values():
            request.wake = self._wake
        self._wake.set()

    def __aiter__(self) -> "Streams":
        return self

    async def __anext__(self) -> list[tuple[int, Chunk]]:
        while self._open:
            await self._wake.wait()
            self._wake.clear()
            ready = [(place, chunk) for place, request in self._open.items() for chunk in request.take()]
            if ready:
                self._wake.set()  # ends are looked at the next time
                return ready
            self._drop_ended()
        raise StopAsyncIteration

    def _drop_ended(self) -> None:
        errors: list[HeadraceError] = []
        for place, request in list(self._open.items()):
            if request.ended is not None or request.is_dropped:
                del self._open[place]
                errors += [request.error] if request.error is not None else []
        if errors:
            raise next((error for error in errors if not isinstance(error, BatchRefused)), errors[0])

    async def abort(self) -> None:
        """End all requests; chunks go on to the last ones, whose finish_reason is abort."""
        for stream in self.streams:
            await stream.abort()

    async def aclose(self) -> None:
        """End all requests and the iteration; harmless when they have ended."""
        self._open.clear()
        for stream in self.streams:
            await stream.aclose()


def _completion(chunk: Chunk) -> Completion:
    assert chunk.finish_reason is not None
    return Completion(
        index=chunk.index,
        text=chunk.text,
        token_ids=chunk.token_ids,
        finish_reason=chunk.finish_reason,
        stop_reason=chunk.stop_reason,
        logprobs=chunk.logprobs,
    )

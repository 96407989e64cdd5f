"""The frontend's side of the ring: the journal of unfinished requests, and the calls that wait for an answer."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.ask import Ask
from headrace.core.channel import Inbox
from headrace.core.config import EngineConfig
from headrace.core.errors import DeadlineExceeded, EngineClosed, HeadraceError, QueueFull, RequestFailed, restore
from headrace.core.messages import (
    Abort,
    Call,
    Delta,
    Finished,
    Refused,
    Reply,
    RequestId,
    Submit,
    SubmitAll,
    ToFrontend,
    ToInput,
    Usage,
)
from headrace.core.params import MAX_SEED
from headrace.outputs import Chunk, Timings, chunk_of, merge


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Journal entry of an unfinished request. Owner: Frontend, but for `chunks`, which its reader empties."""

    submit: Submit
    unfinished: set[int]
    """Choices that have not ended."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """By choice, what the reader has not taken yet."""
    error: HeadraceError | None = None
    scheduled: float | None = None
    first_token: float | None = None
    ended: float | None = None
    deadline: asyncio.TimerHandle | None = None
    is_dropped: bool = False
    """Nobody reads it any more."""

    def ids(self) -> tuple[RequestId, ...]:
        """Return the ids of choices that have not ended."""
        frontend, counter, _ = self.submit.request
        return tuple(RequestId(frontend, counter, choice) for choice in sorted(self.unfinished))

    def take(self) -> list[Chunk]:
        """Take what has come since the last time."""
        chunks, self.chunks = list(self.chunks.values()), {}
        self.wake.clear()
        return chunks

    def timings(self) -> Timings:
        """Return the times of a finished request."""
        start = self.submit.arrival
        return Timings(
            queued_s=None if self.scheduled is None else self.scheduled - start,
            ttft_s=None if self.first_token is None else self.first_token - start,
            total_s=(self.ended or time.monotonic()) - start,
        )


class Frontend:
    """Submits requests and hands out what comes back. Lives on one event loop; `abort` may come from any thread."""

    def __init__(self, number: int, config: EngineConfig, send: Callable[..., None]) -> None:
        self.inbox: Inbox[ToFrontend] = Inbox()
        self._number = number
        self._config = config
        self._send: Callable[..., None] = send
        self._counter = 0
        self._journal: dict[int, OpenRequest] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._closed: HeadraceError | None = None

    # --- requests ---

    def submit(self, asks: Sequence[Ask]) -> list[OpenRequest]:
        """Send requests off, all or none. Raises QueueFull or EngineClosed; what input refuses comes back later."""
        if self._closed is not None:
            raise self._closed
        if len(self._journal) + len(asks) > self._config.max_queued_requests:
            raise QueueFull(
                f"{len(self._journal)} requests are open and {len(asks)} more were submitted, limit is "
                f"{self._config.max_queued_requests} (engine.max_queued_requests); wait, or raise the limit"
            )
        opened = [self._open(ask) for ask in asks]
        submits = tuple(request.submit for request in opened)
        message: ToInput = submits[0] if len(submits) == 1 else SubmitAll(submits)
        self._send(message)
        return opened

    def _open(self, ask: Ask) -> OpenRequest:
        self._counter += 1
        params = ask.params
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._draw_seed())
        submit = Submit(
            RequestId(self._number, self._counter, 0),
            ask.prompt,
            params,
            priority=ask.priority,
            arrival=time.monotonic(),
            cache_salt=ask.cache_salt,
            policy_args=ask.policy_args,
        )
        request = OpenRequest(submit, set(range(params.n)))
        self._journal[self._counter] = request
        if ask.deadline_s is not None:
            loop = asyncio.get_running_loop()
            request.deadline = loop.call_later(ask.deadline_s, self._expire, request, ask.deadline_s)
        return request

    def _draw_seed(self) -> int:
        if self._config.seed is None:
            return secrets.randbits(63)
        digest = hashlib.sha256(f"{self._config.seed}:{self._counter}".encode()).digest()
        return int.from_bytes(digest[:8], "little") & MAX_SEED

    def abort(self, request: OpenRequest, *, drop: bool) -> None:
        """End a request early; `drop`: nobody reads it any more. Harmless when it has ended. From any thread."""
        request.is_dropped |= drop
        if request.ended is None and self._closed is None:
            self._send(Abort(request.ids()))

    def _expire(self, request: OpenRequest, deadline_s: float) -> None:
        self.abort(request, drop=False)
        self._fail(request, DeadlineExceeded(f"deadline_s was {deadline_s:g} and has passed", "deadline_s"))

    def num_open(self) -> int:
        """Count unfinished requests."""
        return len(self._journal)

    # --- calls ---

    async def call(self, what: Any) -> Any:
        """Ask the core something and wait for its answer. Raises the error it answers with."""
        if self._closed is not None:
            raise self._closed
        self._counter += 1
        number = self._counter
        self._calls[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send(Call(self._number, number, what))
            return await answer
        finally:
            self._calls.pop(number, None)

    # --- what comes back ---

    def handle(self, messages: Iterable[ToFrontend]) -> None:
        """Take in messages in their order; those of requests that have ended here are ignored."""
        for message in messages:
            match message:
                case Delta():
                    if request := self._journal.get(message.request.counter):
                        self._take_chunk(request, chunk_of(message))
                case Finished():
                    if request := self._journal.get(message.last.request.counter):
                        self._finish(request, message)
                case Refused():
                    if request := self._journal.get(message.request.counter):
                        self.abort(request, drop=False)
                        self._fail(request, restore(message.error))
                case Reply():
                    self._answer(message)

    def _take_chunk(self, request: OpenRequest, chunk: Chunk) -> None:
        if chunk.token_ids and request.first_token is None:
            request.first_token = time.monotonic()
        if request.is_dropped or request.error is not None:
            return
        waiting = request.chunks.get(chunk.index)
        request.chunks[chunk.index] = chunk if waiting is None else merge(waiting, chunk)
        request.wake.set()

    def _finish(self, request: OpenRequest, finished: Finished) -> None:
        if finished.scheduled is not None and request.scheduled is None:
            request.scheduled = finished.scheduled
        if finished.reason == "error":
            error = restore(finished.error) if finished.error else RequestFailed("the request failed")
            self.abort(request, drop=False)
            self._fail(request, error)
            return
        chunk = msgspec.structs.replace(
            chunk_of(finished.last),
            finish_reason=finished.reason,
            stop_reason=finished.stop_reason,
            usage=finished.usage,
        )
        self._take_chunk(request, chunk)
        request.unfinished.discard(chunk.index)
        if not request.unfinished:
            self._close(request)

    def _fail(self, request: OpenRequest, error: HeadraceError) -> None:
        if request.ended is None:
            request.error = error
            self._close(request)

    def _close(self, request: OpenRequest) -> None:
        request.ended = time.monotonic()
        if request.deadline is not None:
            request.deadline.cancel()
        self._journal.pop(request.submit.request.counter, None)
        request.wake.set()

    def _answer(self, reply: Reply) -> None:
        answer = self._calls.pop(reply.call, None)
        if answer is None or answer.done():
            return
        if reply.error is None:
            answer.set_result(reply.value)
        else:
            answer.set_exception(restore(reply.error))

    def close(self, reason: str) -> None:
        """End everything that is open with EngineClosed(reason); later submissions raise it."""
        self._closed = self._closed or EngineClosed(reason)
        for request in list(self._journal.values()):
            self._fail(request, EngineClosed(reason))
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineClosed(reason))


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Sum the completions of one prompt; the prompt and its cached tokens count once."""
    return Usage(
        prompt_tokens=usages[0].prompt_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=usages[0].cached_tokens,
    )

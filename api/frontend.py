"""The frontend's side of the ring: the journal of unfinished requests, and the calls that wait for an answer."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

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
    Regained,
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
    received: dict[int, list[bytes]] = field(default_factory=dict)
    """By choice, the token ids that came, int32; what a restarted engine goes on from."""
    is_aborted: bool = False
    is_dropped: bool = False
    """Nobody reads it any more."""

    def ids(self) -> tuple[RequestId, ...]:
        """Return the ids of choices that have not ended."""
        frontend, counter, _ = self.submit.request
        return tuple(RequestId(frontend, counter, choice) for choice in sorted(self.unfinished))

    def resubmission(self) -> Submit:
        """Return what a restarted engine gets: the unfinished choices with the tokens they have."""
        received = {choice: b"".join(self.received.get(choice, ())) for choice in sorted(self.unfinished)}
        return replace(self.submit, regained=tuple(Regained(*child) for child in received.items()))

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


@dataclass(slots=True, eq=False)
class _OpenCall:
    """A call without an answer yet."""

    message: Call
    answer: asyncio.Future[Any]


class Frontend:
    """Submits requests and hands out what comes back. Lives on one event loop; `abort` may come from any thread."""

    def __init__(self, number: int, config: EngineConfig) -> None:
        self.inbox: Inbox[ToFrontend] = Inbox()
        self.number = number
        self._config = config
        self._send: Callable[..., None] = _drop
        self._counter = 0
        self._journal: dict[int, OpenRequest] = {}
        self._calls: dict[int, _OpenCall] = {}
        self._closed: HeadraceError | None = None
        self._has_closed = asyncio.Event()

    # --- the way to the engine ---

    def connect(self, send: Callable[..., None]) -> None:
        """Send by `send(*messages)` from now on, and begin with all that is open: the engine has just started."""
        self.handle(self.inbox.buffer.drain())  # what an earlier life sent counts
        self._send = send
        for request in list(self._journal.values()):
            if request.is_aborted:
                self._end_aborted(request)
            else:
                send(request.resubmission())
        for call in self._calls.values():
            send(call.message)

    def disconnect(self) -> None:
        """Send nowhere: the engine has died. The journal keeps what is open until it is back."""
        self._send = _drop

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
            params = replace(params, seed=self._draw_seed())
        submit = Submit(
            RequestId(self.number, self._counter, 0),
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
        request.is_aborted = True
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
        call = _OpenCall(Call(self.number, number, what), asyncio.get_running_loop().create_future())
        self._calls[number] = call
        try:
            self._send(call.message)
            return await call.answer
        finally:
            self._calls.pop(number, None)

    # --- what comes back ---

    def handle(self, messages: Iterable[ToFrontend]) -> None:
        """Take in messages in their order; those of requests that have ended here are ignored."""
        for message in messages:
            match message:
                case Delta():
                    if request := self._journal.get(message.request.counter):
                        self._take_delta(request, message)
                case Finished():
                    if request := self._journal.get(message.last.request.counter):
                        self._finish(request, message)
                case Refused():
                    if request := self._journal.get(message.request.counter):
                        self.abort(request, drop=False)
                        self._fail(request, restore(message.error))
                case Reply():
                    self._answer(message)

    def _take_delta(self, request: OpenRequest, delta: Delta) -> None:
        request.received.setdefault(delta.request.choice, []).append(delta.token_ids)
        self._take_chunk(request, chunk_of(delta))

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
        chunk = replace(
            chunk_of(finished.last),
            finish_reason=finished.reason,
            stop_reason=finished.stop_reason,
            usage=finished.usage,
        )
        self._take_chunk(request, chunk)
        request.unfinished.discard(chunk.index)
        if not request.unfinished:
            self._close(request)

    def _end_aborted(self, request: OpenRequest) -> None:
        """End here what was aborted while the engine was away."""
        for choice in sorted(request.unfinished):
            num_tokens = sum(map(len, request.received.get(choice, ()))) // 4
            self._take_chunk(request, Chunk(index=choice, finish_reason="abort", usage=Usage(0, num_tokens)))
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
        call = self._calls.pop(reply.call, None)
        if call is None or call.answer.done():
            return
        if reply.error is None:
            call.answer.set_result(reply.value)
        else:
            call.answer.set_exception(restore(reply.error))

    def close(self, reason: str) -> None:
        """End everything that is open with EngineClosed(reason); later submissions raise it."""
        self._closed = self._closed or EngineClosed(reason)
        self._has_closed.set()
        for request in list(self._journal.values()):
            self._fail(request, EngineClosed(reason))
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(EngineClosed(reason))

    async def wait_closed(self) -> HeadraceError:
        """Wait until everything has ended; returns the error that later submissions raise."""
        await self._has_closed.wait()
        assert self._closed is not None
        return self._closed


def _drop(*messages: ToInput) -> None:
    """Send nowhere."""


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Sum the completions of one prompt; the prompt and its cached tokens count once."""
    return Usage(
        prompt_tokens=usages[0].prompt_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=usages[0].cached_tokens,
    )

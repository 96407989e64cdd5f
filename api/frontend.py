"""The frontend's side of the ring: the journal of unfinished requests, and the calls that wait for an answer."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import msgpack
from msgspec.structs import replace

from headrace.ask import Ask
from headrace.core.calls import Call, Pause, Reply, Resume
from headrace.core.channel import Inbox
from headrace.core.config import EngineConfig
from headrace.core.errors import (
    DeadlineExceeded,
    EngineClosed,
    HeadraceError,
    InvalidParameter,
    QueueFull,
    RequestFailed,
    restore,
)
from headrace.core.messages import (
    Abort,
    Delta,
    Finished,
    Refused,
    Regained,
    RequestId,
    Submit,
    SubmitAll,
    ToFrontend,
    ToInput,
    Usage,
)
from headrace.core.params import MAX_SEED
from headrace.outputs import Chunk, Timings, chunk_of, join

FORKED = "this process was forked from the one that the engine belongs to; open another engine here"
_NO_CALL = 0
"""Number of calls whose answer nobody waits for."""
_UNSENDABLE = (TypeError, ValueError, OverflowError)
"""What the encoder says of foreign objects, of text that is no Unicode, and of numbers beyond 64 bits."""
_USERS_FIELDS = ("prompt", "params", "cache_salt", "policy_args")
"""Of Submit: what holds users' own values."""


@dataclass(slots=True, eq=False)
class OpenRequest:
    """Journal entry of an unfinished request. Owner: Frontend, but for `chunks`, which its reader empties."""

    submit: Submit
    unfinished: set[int]
    """Choices that have not ended."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    chunks: dict[int, list[Chunk]] = field(default_factory=dict)
    """By choice, what the reader has not taken yet."""
    error: HeadraceError | None = None
    scheduled: float | None = None
    first_token: float | None = None
    ended: float | None = None
    deadline: asyncio.TimerHandle | None = None
    received: dict[int, bytearray] = field(default_factory=dict)
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
        regained = tuple(Regained(choice, bytes(self.received.get(choice, b""))) for choice in sorted(self.unfinished))
        return replace(self.submit, regained=regained)

    def usage(self, finished: Finished) -> Usage:
        """Return the usage of a completion; one that ended before a restarted engine ran it has its earlier tokens."""
        num_received = len(self.received.get(finished.last.request.choice, b"")) // 4
        usage = finished.usage
        return replace(usage, completion_tokens=max(usage.completion_tokens, num_received))

    def take(self) -> list[Chunk]:
        """Take what has come since the last time: one chunk for each choice."""
        chunks, self.chunks = self.chunks, {}
        self.wake.clear()
        return [join(parts) for parts in chunks.values()]

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
    """Submits requests and hands out what comes back. Lives on one event loop; `drop` may be called from anywhere."""

    def __init__(self, number: int, config: EngineConfig) -> None:
        self.inbox: Inbox[ToFrontend] = Inbox()
        self.number = number
        self._config = config
        self._send: Callable[..., None] = _drop
        self._num_submitted = 0
        self._num_called = 0
        self._journal: dict[int, OpenRequest] = {}
        self._calls: dict[int, _OpenCall] = {}
        self._pause: Pause | None = None
        """The pause that holds; a restarted engine gets it again."""
        self._closed: str | None = None
        """Why, once everything has ended."""
        self._pid = os.getpid()
        self._has_closed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- the way to the engine ---

    def connect(self, send: Callable[..., None]) -> None:
        """Send by `send(*messages)` from now on, and begin with all that is open: the engine has just started."""
        self.handle(self.inbox.buffer.drain())  # what an earlier life sent counts
        self._loop = asyncio.get_running_loop()
        self._send = send
        if self._pause is not None:
            send(Call(self.number, _NO_CALL, self._pause))
        for request in self._journal.values():
            send(request.resubmission())
            if request.is_aborted:
                send(Abort(request.ids()))
        for call in self._calls.values():
            send(call.message)

    def disconnect(self) -> None:
        """Send nowhere: the engine has died. The journal keeps what is open until it is back."""
        self._send = _drop

    # --- requests ---

    def submit(self, asks: Sequence[Ask]) -> list[OpenRequest]:
        """Send requests off, all or none. Raises QueueFull, EngineClosed, or InvalidParameter for what can't be sent.

        What input refuses comes back later.
        """
        self.check_open()
        if len(self._journal) + len(asks) > self._config.max_queued_requests:
            raise QueueFull(
                f"{len(self._journal)} requests are open and {len(asks)} more were submitted, limit is "
                f"{self._config.max_queued_requests} (engine.max_queued_requests); wait, or raise the limit"
            )
        opened = [self._open(ask) for ask in asks]
        submits = tuple(request.submit for request in opened)
        message: ToInput = submits[0] if len(submits) == 1 else SubmitAll(submits)
        try:
            self._send(message)
        except _UNSENDABLE as error:
            for request in opened:
                self._close(request)
            raise _unsendable(submits, error) from error
        return opened

    def check_open(self) -> None:
        """Raise EngineClosed if everything has ended, or if this is a fork of the process that it belongs to."""
        if self._pid != os.getpid():
            raise EngineClosed(FORKED)
        if self._closed is not None:
            raise EngineClosed(self._closed)

    def _open(self, ask: Ask) -> OpenRequest:
        self._num_submitted += 1
        params = ask.params
        if params.seed is None:
            params = replace(params, seed=self._draw_seed())
        submit = Submit(
            RequestId(self.number, self._num_submitted, 0),
            ask.prompt,
            params,
            priority=ask.priority,
            arrival=time.monotonic(),
            cache_salt=ask.cache_salt,
            policy_args=ask.policy_args,
        )
        request = OpenRequest(submit, set(range(params.n)))
        self._journal[self._num_submitted] = request
        if ask.deadline_s is not None:
            loop = asyncio.get_running_loop()
            request.deadline = loop.call_later(ask.deadline_s, self._expire, request, ask.deadline_s)
        return request

    def _draw_seed(self) -> int:
        if self._config.seed is None:
            return secrets.randbits(63)
        digest = hashlib.sha256(f"{self._config.seed}:{self._num_submitted}".encode()).digest()
        return int.from_bytes(digest[:8], "little") & MAX_SEED

    def abort(self, request: OpenRequest, *, drop: bool) -> None:
        """End a request early; `drop`: nobody reads it any more. Harmless when it has ended."""
        request.is_dropped |= drop
        request.is_aborted = True
        request.wake.set()
        if request.ended is None:
            self._send(Abort(request.ids()))

    def drop(self, request: OpenRequest) -> None:
        """Have a request aborted that nobody can read any more.

        For destructors: they run on any thread and at any point, also inside the locks of links, so this takes none.
        """
        if self._loop is not None and request.ended is None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(partial(self.abort, request, drop=True))

    def _expire(self, request: OpenRequest, deadline_s: float) -> None:
        self.abort(request, drop=False)
        self._fail(request, DeadlineExceeded(f"deadline_s was {deadline_s:g} and has passed", "deadline_s"))

    def num_open(self) -> int:
        """Count unfinished requests."""
        return len(self._journal)

    # --- calls ---

    async def call(self, what: Any) -> Any:
        """Ask the core something and wait for its answer. Raises the error it answers with."""
        self.check_open()
        self._num_called += 1
        number = self._num_called
        call = _OpenCall(Call(self.number, number, what), asyncio.get_running_loop().create_future())
        self._calls[number] = call
        try:
            self._send(call.message)
            if isinstance(what, Pause | Resume):
                self._note_pause(what)
            return await call.answer
        except _UNSENDABLE as error:
            raise _unsendable((), error) from error
        finally:
            self._calls.pop(number, None)

    def _note_pause(self, what: Pause | Resume) -> None:
        """Remember a pause for an engine that starts again: there, what was running waits too, and nothing ends."""
        self._pause = None if isinstance(what, Resume) else Pause("keep" if what.mode == "keep" else "wait")

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
        request.received.setdefault(delta.request.choice, bytearray()).extend(delta.token_ids)
        self._take_chunk(request, chunk_of(delta))

    def _take_chunk(self, request: OpenRequest, chunk: Chunk) -> None:
        if chunk.token_ids and request.first_token is None:
            request.first_token = time.monotonic()
        if request.is_dropped or request.error is not None:
            return
        request.chunks.setdefault(chunk.index, []).append(chunk)
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
            usage=request.usage(finished),
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
        call = self._calls.pop(reply.call, None)
        if call is None or call.answer.done():
            return
        if reply.error is None:
            call.answer.set_result(reply.value)
        else:
            call.answer.set_exception(restore(reply.error))

    def close(self, reason: str) -> None:
        """End everything that is open with EngineClosed(reason); later submissions raise it."""
        self._closed = self._closed or reason
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
        return EngineClosed(self._closed)


def _drop(*messages: ToInput) -> None:
    """Send nowhere."""


def _unsendable(submits: Iterable[Submit], error: Exception) -> InvalidParameter:
    """Explain that a message can't be encoded, naming the field at fault."""
    parts = ((name, getattr(submit, name)) for submit in submits for name in _USERS_FIELDS)
    field = next((name for name, value in parts if not _is_sendable(value)), None)
    return InvalidParameter(
        f"{field or 'the call'} holds a value that can't be sent to the engine ({error}); use plain numbers, strings, "
        f"lists and dicts",
        field,
    )


def _is_sendable(value: object) -> bool:
    try:
        msgpack.encode(value)
    except _UNSENDABLE:
        return False
    return True


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Sum the completions of one prompt; the prompt and its cached tokens count once."""
    return Usage(
        prompt_tokens=usages[0].prompt_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=usages[0].cached_tokens,
    )

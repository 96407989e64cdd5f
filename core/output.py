"""OutputActor: tokens become text, logprobs and the one Finished of each request. No asyncio.

Owner of detokenizer state and stop-string buffers. Whatever goes wrong here ends one request, never the actor.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.core.calls import Reply
from headrace.core.columns import ints
from headrace.core.errors import RequestFailed, describe
from headrace.core.interfaces import Tokenizer
from headrace.core.messages import (
    Bound,
    Delta,
    Ended,
    Finished,
    FrontendGone,
    PositionLogprobs,
    Refused,
    RequestId,
    StepOutput,
    StopHit,
    TextPart,
    ToFrontend,
    ToOutput,
    Usage,
)
from headrace.core.text.logprobs import Entries, read_logprobs
from headrace.core.text.stream import TextStream
from headrace.core.trace import Tracer

SendFrontend = Callable[[int, list[ToFrontend]], None]
"""send_frontend(frontend, messages), in order."""

_MAX_CUT = 4096
"""Requests ended here whose end the core may still report: it takes a StopHit's way to the core until it can't."""

_PLAIN_END = ("stop", "length")
"""Ends that a stop string overrides: it came first in the text."""


@dataclass(slots=True)
class _Request:
    """A request that was bound and hasn't ended."""

    id: RequestId
    row: int
    stream: TextStream
    num_prompt: int
    num_cached: int
    scheduled: float
    wants_logprobs: bool
    prompt_logprobs: dict[int, PositionLogprobs] | None
    """By position, until they are delivered; None if nobody asked or they are."""


class OutputActor:
    """Turns what the core says into what frontends get; grouped per frontend, one list per call of `handle`."""

    def __init__(self, tokenizer: Tokenizer, send_frontend: SendFrontend, send_core: Callable[[StopHit], None]) -> None:
        self._tokenizer = tokenizer
        self._send_frontend = send_frontend
        self._send_core = send_core
        self._requests: dict[RequestId, _Request] = {}
        self._rows: dict[int, _Request] = {}
        """Whose tokens a row's are; without the rows of requests that ended here."""
        self._cut: dict[RequestId, None] = {}
        """Requests that ended here before the core knew, oldest first."""
        self._outbox: dict[int, list[ToFrontend]] = {}
        self._clock = time.monotonic
        self._tracer = Tracer("output")
        self._special = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}

    def handle(self, messages: Sequence[ToOutput]) -> None:
        """Work through messages in order, then send what each frontend gets."""
        start = self._clock()
        for message in messages:
            match message:
                case StepOutput():
                    self._step(message)
                case Refused(request=request):
                    self._send(request.frontend, message)
                case Reply(frontend=frontend, is_trace=True):
                    spans = (*message.value, *self._tracer.spans())
                    self._send(frontend, Reply(frontend, message.call, spans))
                case Reply(frontend=frontend):
                    self._send(frontend, message)
                case FrontendGone():
                    pass  # its requests were ended by the core; whoever holds its link closes it
        outbox, self._outbox = self._outbox, {}
        for frontend, sent in outbox.items():
            self._send_frontend(frontend, sent)
        self._tracer.add("detokenize", start, self._clock())

    def _step(self, step: StepOutput) -> None:
        for bound in step.bound:
            self._bind(bound)
        self._keep_prompt_logprobs(step)
        entries = self._entries(step)
        ended = {end.request: end for end in step.ended}
        token_ids, column = ints(step.token_ids).tolist(), step.token_ids
        stop = 0
        for row, num_new in zip(ints(step.rows).tolist(), ints(step.num_new).tolist(), strict=True):
            start, stop = stop, stop + num_new
            request = self._rows.get(row)
            if request is not None:
                end = ended.pop(request.id, None) if ended else None
                self._take(request, token_ids[start:stop], column[4 * start : 4 * stop], end, entries)
        for end in ended.values():
            self._end(end)

    def _bind(self, bound: Bound) -> None:
        """Point a row at its request: a new one, or one that comes back after a preemption."""
        request = self._requests.get(bound.request)
        if request is not None:
            self._free_row(request)
            request.row = bound.row
            self._rows[bound.row] = request
            return
        self._rows.pop(bound.row, None)
        if not bound.text:
            return  # it ended here while the core was bringing it back
        try:
            request = self._new_request(bound)
        except Exception as error:  # a tokenizer is a plugin: what it does ends its own request
            self._note_cut(bound.request, 0)
            usage = Usage(bound.num_prompt, 0, bound.num_cached)
            last = Delta(bound.request, "")
            self._send(bound.request.frontend, Finished(last, "error", usage, None, describe(error), bound.scheduled))
            return
        self._requests[bound.request] = self._rows[bound.row] = request

    def _new_request(self, bound: Bound) -> _Request:
        part = msgspec.msgpack.decode(bound.text, type=TextPart)
        decoder = self._tokenizer.detokenizer(part.prompt_tail, part.skip_special_tokens)
        hidden = part.stop if part.skip_special_tokens else ()
        special_stops = {self._special[text]: text for text in hidden if text in self._special}
        stream = TextStream(part, decoder, special_stops)
        stream.push(ints(part.regained).tolist())  # their text is with the frontend: it goes on behind them
        return _Request(
            id=bound.request,
            row=bound.row,
            stream=stream,
            num_prompt=bound.num_prompt,
            num_cached=bound.num_cached,
            scheduled=bound.scheduled,
            wants_logprobs=part.logprobs is not None,
            prompt_logprobs=None if part.prompt_logprobs is None else {},
        )

    # --- tokens and ends ---

    def _take(
        self, request: _Request, token_ids: list[int], column: bytes, end: Ended | None, entries: Entries
    ) -> None:
        """Take a request's new tokens (`column`: the same as int32), and its end if it is in the same message."""
        stream = request.stream
        before = stream.num_tokens
        try:
            text = stream.push(token_ids, is_last_silent=end is not None and end.reason == "stop")
            if end is not None or stream.hit is not None:
                text += stream.finish()
            num_counted = stream.num_tokens - before
            logprobs = _logprobs(request, before, entries) if request.wants_logprobs else None
            prompt_logprobs = None if request.prompt_logprobs is None else _prompt_logprobs(request, num_counted > 0)
        except Exception as error:  # a tokenizer is a plugin: what it does ends its own request
            self._fail(request, before, end, error)
            return
        delta = Delta(request.id, text, column[: 4 * num_counted], logprobs, prompt_logprobs)
        if stream.hit is not None and (end is None or end.reason in _PLAIN_END):
            if end is None:
                self._note_cut(request.id, stream.num_tokens)
            self._finish(request, Finished(delta, "stop", _usage(request), stream.hit, None, request.scheduled))
        elif end is not None:
            usage = _usage(request)
            self._finish(request, Finished(delta, end.reason, usage, end.stop_reason, end.error, request.scheduled))
        else:
            self._send(request.id.frontend, delta)

    def _end(self, end: Ended) -> None:
        """End a request without new tokens: one that is bound, one that ended here already, or one that never ran."""
        request = self._requests.get(end.request)
        if request is not None:
            self._take(request, [], b"", end, {})
        elif end.request in self._cut:
            del self._cut[end.request]
        else:
            usage = Usage(end.num_prompt, 0, end.num_cached)
            last = Delta(end.request, "")
            self._send(end.request.frontend, Finished(last, end.reason, usage, end.stop_reason, end.error))

    def _fail(self, request: _Request, num_tokens: int, end: Ended | None, error: Exception) -> None:
        if end is None:
            self._note_cut(request.id, num_tokens)
        usage = Usage(request.num_prompt, num_tokens, request.num_cached)
        last = Delta(request.id, "")
        self._finish(request, Finished(last, "error", usage, None, describe(error), request.scheduled))

    def _note_cut(self, request: RequestId, num_tokens: int) -> None:
        """Tell the core that a request ended here, and remember it until the core can't report its end any more."""
        self._send_core(StopHit(request, num_tokens))
        self._cut[request] = None
        if len(self._cut) > _MAX_CUT:
            del self._cut[next(iter(self._cut))]

    def _finish(self, request: _Request, finished: Finished) -> None:
        self._send(request.id.frontend, finished)
        del self._requests[request.id]
        self._free_row(request)

    def _free_row(self, request: _Request) -> None:
        if self._rows.get(request.row) is request:
            del self._rows[request.row]

    def _send(self, frontend: int, message: ToFrontend) -> None:
        self._outbox.setdefault(frontend, []).append(message)

    # --- log probabilities ---

    def _entries(self, step: StepOutput) -> Entries:
        if step.logprobs is None:
            return {}
        rows = {row for row, request in self._rows.items() if request.wants_logprobs}
        return read_logprobs(step.logprobs, rows, self._tokenizer.token_text)

    def _keep_prompt_logprobs(self, step: StepOutput) -> None:
        """Collect prompt log probabilities by position, which may come twice after a preemption."""
        if step.prompt_logprobs is None:
            return
        rows = {row for row, request in self._rows.items() if request.prompt_logprobs is not None}
        for (row, position), entry in read_logprobs(step.prompt_logprobs, rows, self._tokenizer.token_text).items():
            collected = self._rows[row].prompt_logprobs
            if collected is not None:
                collected[position] = entry


def _usage(request: _Request) -> Usage:
    return Usage(request.num_prompt, request.stream.num_tokens, request.num_cached)


def _logprobs(request: _Request, before: int, entries: Entries) -> tuple[PositionLogprobs, ...]:
    first = request.num_prompt + before
    positions = range(first, request.num_prompt + request.stream.num_tokens)
    return tuple(_entry(entries.get((request.row, position)), position) for position in positions)


def _prompt_logprobs(request: _Request, is_due: bool) -> tuple[PositionLogprobs | None, ...] | None:
    """Hand over the whole prompt's once; before the first token only if they are all there."""
    collected = request.prompt_logprobs or {}
    if not is_due and len(collected) < request.num_prompt - 1:
        return None
    positions = range(1, request.num_prompt)
    whole = (None, *(_entry(collected.get(position), position) for position in positions))
    request.prompt_logprobs = None
    return whole


def _entry(found: PositionLogprobs | None, position: int) -> PositionLogprobs:
    if found is None:
        raise RequestFailed(f"the runner reported no log probability for position {position}")
    return found

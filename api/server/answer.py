"""From requests of the engine to one HTTP answer, streamed or not; the same for both APIs."""

import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from headrace.ask import Ask
from headrace.core.errors import HeadraceError
from headrace.core.messages import Usage as EngineUsage
from headrace.outputs import Chunk
from headrace.server.errors import error_body
from headrace.server.reply import Reply
from headrace.server.responses import Usage, usage_of
from headrace.server.service import Service
from headrace.stream import Streams

Place = tuple[int, Chunk]
"""The place of a prompt, and a chunk of its answer."""
ReadyChunks = AsyncIterator[list[Place]]


class Shape(Protocol):
    """How an API writes one answer."""

    def event(self, prompt: int, chunk: Chunk) -> Struct | None:
        """Return the event that says this chunk; None if it says nothing."""

    def usage_event(self, usage: Usage) -> Struct:
        """Return the event that tells the usage."""

    def whole(self, chunks: Iterable[Place], usage: Usage) -> Struct:
        """Return the answer that isn't streamed, of one chunk per choice."""


class Job(Struct, frozen=True, kw_only=True):
    """What an HTTP request asks for, checked."""

    asks: list[Ask]
    shape: Shape
    is_stream: bool
    includes_usage: bool
    is_prompt_only: bool
    """The one token generated beyond the prompt is left out."""

    @property
    def num_choices(self) -> int:
        """Completions of all prompts."""
        return sum(ask.params.n for ask in self.asks)


def new_id(prefix: str) -> str:
    """Make an id for an answer: unique, no secret."""
    return f"{prefix}-{random.getrandbits(128):032x}"


async def answer(job: Job, service: Service, reply: Reply) -> None:
    """Run a job to its end. Raises HeadraceError where nothing was sent yet; later it becomes the last event."""
    streams = Streams(service.engine.submit(job.asks))
    async with service.running(job.asks, streams) as ready_chunks:
        await (_stream if job.is_stream else _answer_whole)(job, ready_chunks, reply)


async def _answer_whole(job: Job, ready_chunks: ReadyChunks, reply: Reply) -> None:
    count = _UsageCount()
    choices: dict[tuple[int, int], list[Chunk]] = {}
    async for ready in ready_chunks:
        for prompt, chunk in _shown(job, ready):
            count.add(chunk)
            choices.setdefault((prompt, chunk.index), []).append(chunk)
    whole = [(prompt, _joined(choices[prompt, index])) for prompt, index in sorted(choices)]
    await reply.json(job.shape.whole(whole, count.usage()))


async def _stream(job: Job, ready_chunks: ReadyChunks, reply: Reply) -> None:
    count = _UsageCount()
    try:
        async for ready in ready_chunks:
            events = []
            for prompt, chunk in _shown(job, ready):
                count.add(chunk)
                if event := job.shape.event(prompt, chunk):
                    events.append(event)
            is_last = count.num_ended == job.num_choices
            if is_last and job.includes_usage:
                events.append(job.shape.usage_event(count.usage()))
            if events:
                await reply.events(events, is_last=is_last)
    except Exception as error:
        if not reply.has_started:
            raise
        await reply.events([error_body(error)], is_last=True)
        if not isinstance(error, HeadraceError):
            raise


def _shown(job: Job, ready: list[Place]) -> list[Place]:
    return [(prompt, _without_output(chunk)) for prompt, chunk in ready] if job.is_prompt_only else ready


def _without_output(chunk: Chunk) -> Chunk:
    return replace(
        chunk,
        text="",
        token_ids=[],
        logprobs=None if chunk.logprobs is None else [],
        finish_reason=chunk.finish_reason and "length",
        stop_reason=None,
        usage=chunk.usage and replace(chunk.usage, completion_tokens=0),
    )


@dataclass(slots=True)
class _UsageCount:
    """Sums usage: each prompt once, as its first choice saw it."""

    num_ended: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, chunk: Chunk) -> None:
        if chunk.usage is None:
            return
        self.num_ended += 1
        self.completion_tokens += chunk.usage.completion_tokens
        if chunk.index == 0:
            self.prompt_tokens += chunk.usage.prompt_tokens
            self.cached_tokens += chunk.usage.cached_tokens

    def usage(self) -> Usage:
        return usage_of(EngineUsage(self.prompt_tokens, self.completion_tokens, self.cached_tokens))


def _joined(chunks: list[Chunk]) -> Chunk:
    """Join all chunks of one completion."""
    with_logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    return replace(
        chunks[-1],
        text="".join([chunk.text for chunk in chunks]),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
        logprobs=[position for logprobs in with_logprobs for position in logprobs] if with_logprobs else None,
        prompt_logprobs=next((chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs is not None), None),
    )

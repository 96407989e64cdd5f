"""POST /v1/chat/completions: from its body to a request of the engine, and from chunks to its answer."""

import time
from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from headrace.core.prompts import ChatPrompt
from headrace.outputs import Chunk
from headrace.server.answer import Job, Place, new_id
from headrace.server.logprobs import chat_logprobs, prompt_logprobs
from headrace.server.requests import ChatRequest
from headrace.server.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    PromptLogprobs,
    Usage,
)
from headrace.server.service import Service

ROLE = "assistant"


def chat_job(request: ChatRequest, service: Service) -> Job:
    """Check a request and tell what to do. Raises RequestError; messages are checked where they meet the template."""
    request.check()
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    params = request.sampling(max_tokens, logprobs, service.recommended)
    return Job(
        asks=[request.ask(ChatPrompt(tuple(request.messages)), params)],
        shape=ChatShape(request, service.model),
        is_stream=bool(request.stream),
        includes_usage=request.includes_usage,
        is_prompt_only=max_tokens == 0,
    )


class ChatShape:
    """Writes one answer (protocol Shape)."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._num_alternatives = request.top_logprobs or 0
        self._started: set[int] = set()
        """Choices whose role was told."""
        self._head = (new_id("chatcmpl"), int(time.time()), model)

    def event(self, _prompt: int, chunk: Chunk) -> ChatChunk | None:
        """Return the event that says this chunk; None if it says nothing."""
        if not (chunk.text or chunk.logprobs or chunk.finish_reason or chunk.prompt_logprobs):
            return None
        role: str | UnsetType = UNSET if chunk.index in self._started else ROLE
        self._started.add(chunk.index)
        has_content = chunk.text or role is not UNSET
        choice = ChatChunkChoice(
            index=chunk.index,
            delta=ChatDelta(role=role, content=chunk.text if has_content else UNSET),
            logprobs=self._logprobs(chunk),
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
        )
        return self._chunk([choice], prompt_logprobs=_prompt_logprobs(chunk))

    def usage_event(self, usage: Usage) -> ChatChunk:
        """Return the event that tells the usage."""
        return self._chunk([], usage)

    def whole(self, chunks: Iterable[Place], usage: Usage) -> ChatCompletion:
        """Return the answer that isn't streamed, of one chunk per choice."""
        answer_id, created, model = self._head
        whole = [chunk for _, chunk in chunks]
        choices = [
            ChatChoice(
                index=chunk.index,
                message=ChatMessage(ROLE, chunk.text),
                logprobs=self._logprobs(chunk),
                finish_reason=chunk.finish_reason,
                stop_reason=chunk.stop_reason,
            )
            for chunk in whole
        ]
        return ChatCompletion(
            id=answer_id,
            created=created,
            model=model,
            choices=choices,
            usage=usage,
            prompt_logprobs=_prompt_logprobs(whole[0]),
        )

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | UnsetType = UNSET,
        prompt_logprobs: PromptLogprobs | UnsetType = UNSET,
    ) -> ChatChunk:
        answer_id, created, model = self._head
        return ChatChunk(
            id=answer_id, created=created, model=model, choices=choices, usage=usage, prompt_logprobs=prompt_logprobs
        )

    def _logprobs(self, chunk: Chunk) -> ChatLogprobs | None:
        return None if chunk.logprobs is None else chat_logprobs(chunk.logprobs, self._num_alternatives)


def _prompt_logprobs(chunk: Chunk) -> PromptLogprobs | UnsetType:
    return UNSET if chunk.prompt_logprobs is None else prompt_logprobs(chunk.prompt_logprobs)

"""POST /v1/completions: from its body to requests of the engine, and from chunks to its answer."""

import time
from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from headrace.core.errors import InvalidParameter, InvalidPrompt
from headrace.core.prompts import Prompt, TextPrompt, TokenPrompt
from headrace.engine import Engine
from headrace.outputs import Chunk
from headrace.server.answer import Job, Place, new_id
from headrace.server.logprobs import Position, completion_logprobs, prompt_logprobs, text_length
from headrace.server.requests import CompletionRequest
from headrace.server.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from headrace.server.service import Service

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 4096
"""Completions of one HTTP request: prompts times n."""


class Echo(Struct, frozen=True):
    """What an answer with echo puts before the text."""

    text: str
    first_token: str = ""
    """Text of the prompt's first token, where log probabilities were asked for."""


async def completion_job(request: CompletionRequest, service: Service) -> Job:
    """Check a request and tell what to do. Raises RequestError."""
    request.check()
    prompts = _prompts(request.prompt)
    if len(prompts) * (request.n or 1) > MAX_CHOICES:
        raise InvalidParameter(f"n is {request.n} for {len(prompts)} prompts, limit is {MAX_CHOICES} in all", "n")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    params = request.sampling(max_tokens, request.logprobs, service.recommended)
    has_logprobs = params.logprobs is not None
    if request.echo and has_logprobs:
        params = replace(params, prompt_logprobs=max(params.prompt_logprobs or 0, params.logprobs or 0))
    echoes = [await _echo(service.engine, prompt, has_logprobs) for prompt in prompts] if request.echo else []
    return Job(
        asks=[request.ask(prompt, params) for prompt in prompts],
        shape=CompletionShape(request, service.model, echoes),
        is_stream=bool(request.stream),
        includes_usage=request.includes_usage,
        is_prompt_only=max_tokens == 0,
    )


async def _echo(engine: Engine, prompt: Prompt, wants_tokens: bool) -> Echo:
    first_token = ""
    if wants_tokens:
        tokenized = await engine.tokenize(prompt, with_texts=True)
        first_token = (tokenized.texts or [""])[0]
    if isinstance(prompt, TextPrompt):
        return Echo(prompt.text, first_token)
    assert isinstance(prompt, TokenPrompt)
    return Echo(await engine.detokenize(prompt.token_ids), first_token)


def _prompts(prompt: str | Sequence[int | str | list[int]]) -> list[Prompt]:
    """Tell the forms of a prompt apart: a text, ids, texts, or lists of ids."""
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    ids = [item for item in prompt if isinstance(item, int)]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt:
        raise InvalidPrompt("prompt is an empty list, must have at least one prompt or token id", "prompt")
    if len(prompt) not in (len(ids), len(texts), len(lists)):
        raise InvalidPrompt("prompt mixes texts, token ids and lists, must be of one kind", "prompt")
    if ids:
        return [TokenPrompt(tuple(ids))]
    return [TextPrompt(text) for text in texts] or [TokenPrompt(tuple(each)) for each in lists]


class CompletionShape:
    """Writes one answer (protocol Shape)."""

    def __init__(self, request: CompletionRequest, model: str, echoes: Sequence[Echo]) -> None:
        self._n = request.n or 1
        self._num_alternatives = request.logprobs or 0
        self._wants_prompt_logprobs = request.prompt_logprobs is not None
        self._echoes = echoes
        self._offsets: dict[int, int] = {}
        """By choice, where its next token's text starts."""
        self._head = (new_id("cmpl"), int(time.time()), model)

    def event(self, prompt: int, chunk: Chunk) -> Completion | None:
        """Return the event that says this chunk; None if it says nothing."""
        choice = self._choice(prompt, chunk)
        says_something = choice.text or chunk.logprobs or chunk.finish_reason or chunk.prompt_logprobs
        return self._answer([choice]) if says_something else None

    def usage_event(self, usage: Usage) -> Completion:
        """Return the event that tells the usage."""
        return self._answer([], usage)

    def whole(self, chunks: Iterable[Place], usage: Usage) -> Completion:
        """Return the answer that isn't streamed, of one chunk per choice."""
        return self._answer([self._choice(prompt, chunk) for prompt, chunk in chunks], usage)

    def _answer(self, choices: list[CompletionChoice], usage: Usage | UnsetType = UNSET) -> Completion:
        answer_id, created, model = self._head
        return Completion(id=answer_id, created=created, model=model, choices=choices, usage=usage)

    def _choice(self, prompt: int, chunk: Chunk) -> CompletionChoice:
        index = prompt * self._n + chunk.index
        echo = self._echoes[prompt] if self._echoes and index not in self._offsets else None
        self._offsets.setdefault(index, 0)
        has_prompt_logprobs = self._wants_prompt_logprobs and chunk.prompt_logprobs is not None
        return CompletionChoice(
            index=index,
            text=chunk.text if echo is None else echo.text + chunk.text,
            logprobs=None if chunk.logprobs is None else self._logprobs(index, chunk, echo),
            finish_reason=chunk.finish_reason,
            stop_reason=chunk.stop_reason,
            prompt_logprobs=prompt_logprobs(chunk.prompt_logprobs or []) if has_prompt_logprobs else UNSET,
        )

    def _logprobs(self, index: int, chunk: Chunk, echo: Echo | None) -> CompletionLogprobs:
        positions: list[Position | None] = [*(chunk.prompt_logprobs or ())] if echo else []
        positions += chunk.logprobs or ()
        first_token = echo.first_token if echo else ""
        logprobs = completion_logprobs(positions, self._num_alternatives, self._offsets[index], first_token)
        self._offsets[index] += text_length(logprobs)
        return logprobs

"""Bodies of answers, in the shapes of OpenAI's API with vLLM's additional fields."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from headrace.core.messages import Usage as EngineUsage


class PromptTokensDetails(Struct, frozen=True):
    """Part of Usage."""

    cached_tokens: int
    """Prompt tokens taken from the prefix cache."""


class Usage(Struct, frozen=True):
    """Tokens of one HTTP request: each prompt counted once, completion tokens summed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(usage: EngineUsage) -> Usage:
    """Put usage into the API's shape."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(usage.cached_tokens))


class PromptLogprob(Struct, frozen=True):
    """One candidate at one position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""Per token of the prompt: candidates by id, the prompt's own first; null for the first token."""


# --- completions ------------------------------------------------------------------------------------------------------


class CompletionLogprobs(Struct, frozen=True):
    """Columns, one entry per token."""

    text_offset: list[int]
    """Where each token's text starts, in characters."""
    token_logprobs: list[float | None]
    """Null for the first token of an echoed prompt."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None
    """By text; null if no alternatives were asked for."""


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One completion, or more of it."""

    index: int
    """prompt's place * n + completion's place."""
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    """stop, length or abort; null until the completion's end."""
    stop_reason: int | str | None = None
    """The stop string or id that ended it; null for the model's own end."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """Answer of /v1/completions, and every event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET


# --- chats ------------------------------------------------------------------------------------------------------------


class TopLogprob(Struct, frozen=True):
    """One candidate."""

    token: str
    logprob: float
    bytes: list[int] | None
    """Null where the token alone is no whole character."""


class ChatLogprob(Struct, frozen=True):
    """One token of the answer."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """One entry per token."""

    content: list[ChatLogprob]


class ChatMessage(Struct, frozen=True):
    """The assistant's answer."""

    role: str
    content: str


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True):
    """More of an answer."""

    role: str | UnsetType = UNSET
    """In a choice's first delta."""
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """More of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """Event of a streamed /v1/chat/completions."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


# --- the rest ---------------------------------------------------------------------------------------------------------


class Model(Struct, frozen=True, kw_only=True):
    """A name the model is served by."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    root: str
    """What the server was told to load."""
    max_model_len: int


class ModelList(Struct, frozen=True):
    """Answer of /v1/models."""

    data: list[Model]
    object: Literal["list"] = "list"


class TokenizeAnswer(Struct, frozen=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Struct, frozen=True):
    """Answer of /detokenize."""

    prompt: str


class Health(Struct, frozen=True):
    """Answer of /health: 200 if ok, else 503."""

    status: Literal["ok", "draining", "stalled", "silent", "closed"]
    ready_age_s: float | None = None
    """Since the core last got on, while it has requests that may run."""
    step_age_s: float | None = None
    """Since the oldest step in flight was submitted."""
    reason: str | None = None


class Trace(Struct, frozen=True, rename="camel"):
    """Answer of /trace, in the Trace Event Format; times are microseconds."""

    trace_events: list[dict[str, Any]]
    display_time_unit: str


class Version(Struct, frozen=True):
    """Answer of /version."""

    version: str

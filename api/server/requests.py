"""Bodies of requests, as OpenAI's API and vLLM's extensions of it define them. Unknown fields are ignored."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from headrace.ask import Ask
from headrace.core.errors import InvalidParameter
from headrace.core.params import SamplingParams
from headrace.core.prompts import Prompt

_SHARED = {field.name for field in fields(SamplingParams)} - {"logprobs", "max_tokens"}


class StreamOptions(Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """One more event before the end tells the usage."""


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """What completions and chats have in common. Fields of SamplingParams mean the same here."""

    model: str | None = None
    """Any name of /v1/models; none is needed."""
    stream: bool | None = None
    """Send events as tokens come."""
    stream_options: StreamOptions | None = None
    """With stream only."""
    max_tokens: int | None = None
    """Most tokens to generate; 0: none, the prompt is only computed."""
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    logits_processors: dict[str, dict[str, Any]] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    """Lower is more urgent, where the policy looks at it."""
    cache_salt: str | None = None
    """Separates prefix cache entries completely."""
    policy_args: dict[str, Any] | None = None
    """What the policy lets requests say, such as {"tenant": "a"}."""
    deadline_s: float | None = None
    """Seconds after which the request ends with an error."""
    response_format: Any = None
    """Only {"type": "text"}."""
    guided_json: Any = None
    """Not supported."""
    guided_regex: Any = None
    """Not supported."""
    guided_choice: Any = None
    """Not supported."""
    guided_grammar: Any = None
    """Not supported."""
    structured_outputs: Any = None
    """Not supported."""

    @property
    def includes_usage(self) -> bool:
        """Whether a streamed answer ends with its usage. Raises InvalidParameter where nothing is streamed."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidParameter("stream_options is given without stream; set stream to true", "stream_options")
        return bool(self.stream_options.include_usage)

    def check(self) -> None:
        """Refuse what isn't supported rather than ignore it. Raises InvalidParameter."""
        kind = self.response_format.get("type") if isinstance(self.response_format, dict) else self.response_format
        if kind not in (None, "text"):
            raise _unsupported("response_format", f"is of type {kind!r:.80}, only text")
        for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"):
            if getattr(self, name) is not None:
                raise _unsupported(name, "is given, no structured output")

    def sampling(
        self, max_tokens: int | None, logprobs: int | None, recommended: Mapping[str, float]
    ) -> SamplingParams:
        """Check the sampling fields. A max_tokens of 0 becomes the 1 that the prompt's computation needs.

        recommended: values of fields that the request leaves out, by name.
        """
        given = {name: value for name in _SHARED if (value := getattr(self, name)) is not None}
        return SamplingParams(
            **{**recommended, **given}, max_tokens=1 if max_tokens == 0 else max_tokens, logprobs=logprobs
        )

    def ask(self, prompt: Prompt, params: SamplingParams) -> Ask:
        """Make a request to the engine."""
        names = ("priority", "cache_salt", "policy_args", "deadline_s")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return Ask(prompt=prompt, params=params, **given)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of POST /v1/completions."""

    prompt: str | list[int | str | list[int]]
    """A text, token ids, or a list of either."""
    logprobs: int | None = None
    """Report each token's log probability and so many likeliest alternatives."""
    echo: bool | None = None
    """Put the prompt before the text."""
    best_of: int | None = None
    """Only as many as n."""
    suffix: str | None = None
    """Not supported."""

    def check(self) -> None:
        """Refuse what isn't supported rather than ignore it. Raises InvalidParameter."""
        super().check()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidParameter(f"best_of is {self.best_of}, must be as many as n; ask for n instead", "best_of")
        if self.suffix:
            raise _unsupported("suffix", "is given, no text after the completion")


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    """The conversation, each message with role and content; content is text or a list of text parts."""
    max_completion_tokens: int | None = None
    """Newer name of max_tokens, which it overrides; neither: as many as fit."""
    logprobs: bool | None = None
    """Report each token's log probability."""
    top_logprobs: int | None = None
    """And so many likeliest alternatives."""
    tools: list[Any] | None = None
    """Not supported."""
    tool_choice: Any = None
    """Only "none"."""
    functions: list[Any] | None = None
    """Not supported."""

    def check(self) -> None:
        """Refuse what isn't supported rather than ignore it. Raises InvalidParameter."""
        super().check()
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise _unsupported(name, "is given, no tool calls")
        if self.tool_choice not in (None, "none"):
            raise _unsupported("tool_choice", f"is {self.tool_choice!r:.80}, no tool calls")
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("top_logprobs is given without logprobs; set logprobs to true", "top_logprobs")


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    """Of a prompt, such as a begin-of-sequence id."""
    return_token_strs: bool = False


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]


def _unsupported(field: str, what: str) -> InvalidParameter:
    return InvalidParameter(f"{field} {what} is supported; leave it out", field)

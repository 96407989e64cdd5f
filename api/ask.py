"""One request as a user makes it, checked for everything that needs no tokenizer."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from headrace.core.errors import InvalidParameter, InvalidPrompt
from headrace.core.messages import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from headrace.core.params import SamplingParams

PromptLike = str | Sequence[int]
"""Text, or token ids."""
Message = dict[str, Any]
"""A chat message: role and content."""
_PRIORITY_RANGE = 2**31


class RequestOptions(TypedDict, total=False):
    """What may be said of a request beside its prompt and sampling parameters."""

    priority: int
    """Lower is more urgent, where the policy looks at it."""
    policy_args: dict[str, Any] | None
    """What the policy lets requests say, such as {"tenant": "a"}."""
    cache_salt: str | None
    """Separates prefix cache entries completely."""
    deadline_s: float | None
    """Seconds after which the request ends with DeadlineExceeded."""


class Ask(Struct, frozen=True, kw_only=True):
    """A checked request. Raises InvalidParameter naming the field, the value and its limits."""

    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    policy_args: dict[str, Any] = {}
    cache_salt: str | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Check what types can't say."""
        if not isinstance(self.params, SamplingParams):
            raise _invalid("params", self.params, "SamplingParams")
        if not _is_number(self.priority, int) or abs(self.priority) >= _PRIORITY_RANGE:
            raise _invalid("priority", self.priority, "a whole number of 32 bits")
        if not isinstance(self.policy_args, dict):
            raise _invalid("policy_args", self.policy_args, "a dict")
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise _invalid("cache_salt", self.cache_salt, "a string")
        deadline_s = self.deadline_s
        if deadline_s is not None and not (_is_number(deadline_s, int | float) and 0 < deadline_s < math.inf):
            raise _invalid("deadline_s", deadline_s, "seconds above 0")


def ask_prompt(prompt: PromptLike, params: SamplingParams | None, **options: Unpack[RequestOptions]) -> Ask:
    """Make a request of a text or of token ids."""
    if isinstance(prompt, str):
        return _ask(TextPrompt(prompt), params, options)
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        return _ask(TokenPrompt(tuple(prompt)), params, options)
    raise InvalidPrompt(f"prompt is a {type(prompt).__name__}, must be text or a list of token ids", "prompt")


def ask_chat(messages: Sequence[Message], params: SamplingParams | None, **options: Unpack[RequestOptions]) -> Ask:
    """Make a request of a conversation."""
    if isinstance(messages, Sequence) and all(isinstance(message, dict) for message in messages):
        return _ask(ChatPrompt(tuple(messages)), params, options)
    raise InvalidPrompt("messages must be a list of dicts with role and content", "messages")


def _ask(prompt: Prompt, params: SamplingParams | None, options: RequestOptions) -> Ask:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return Ask(prompt=prompt, params=SamplingParams() if params is None else params, **given)


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _invalid(field: str, value: object, limit: str) -> InvalidParameter:
    return InvalidParameter(f"{field} is {value!r:.80}, must be {limit}", field)

"""One request as a user makes it, checked for everything that needs no tokenizer."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from headrace.core.errors import InvalidParameter, InvalidPrompt, RequestError
from headrace.core.params import SamplingParams
from headrace.core.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt

PromptLike = str | Sequence[int]
"""Text, or token ids."""
Message = dict[str, Any]
"""A chat message: role and content."""
MAX_ID = 2**31
"""Token ids are below this, whatever the vocabulary."""
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
        check_prompt(self.prompt)
        if not isinstance(self.params, SamplingParams):
            raise _invalid("params", self.params, "SamplingParams")
        if not _is_number(self.priority, int) or abs(self.priority) >= _PRIORITY_RANGE:
            raise _invalid("priority", self.priority, "a whole number of 32 bits")
        if not _is_dict(self.policy_args):
            raise _invalid("policy_args", self.policy_args, "a dict with strings as keys")
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise _invalid("cache_salt", self.cache_salt, "a string")
        deadline_s = self.deadline_s
        if deadline_s is not None and not (_is_number(deadline_s, int | float) and 0 < deadline_s < math.inf):
            raise _invalid("deadline_s", deadline_s, "seconds above 0")


def check_prompt(prompt: Prompt) -> None:
    """Raise InvalidPrompt on what has another type than its message says: no process could read that."""
    match prompt:
        case TextPrompt(text=text):
            if not isinstance(text, str):
                raise InvalidPrompt(f"prompt is a {type(text).__name__}, must be text", "prompt")
        case TokenPrompt(token_ids=token_ids):
            check_token_ids("prompt", token_ids, InvalidPrompt)
        case ChatPrompt(messages=messages):
            for i, message in enumerate(messages):
                if not _is_dict(message):
                    raise InvalidPrompt(
                        f"messages[{i}] is {message!r:.80}, must be a dict with strings as keys", "messages"
                    )


def check_token_ids(field: str, token_ids: Sequence[int], error: type[RequestError] = InvalidParameter) -> None:
    """Raise `error` on what can't be a token id of any vocabulary."""
    if set(map(type, token_ids)) <= {int} and (not token_ids or 0 <= min(token_ids) <= max(token_ids) < MAX_ID):
        return
    wrong = next(token_id for token_id in token_ids if type(token_id) is not int or not 0 <= token_id < MAX_ID)
    raise error(f"{field} has the token id {wrong!r:.80}, ids are whole numbers from 0 on", field)


def ask_prompt(prompt: PromptLike, params: SamplingParams | None, **options: Unpack[RequestOptions]) -> Ask:
    """Make a request of a text or of token ids."""
    if isinstance(prompt, str):
        return _ask(TextPrompt(prompt), params, options)
    if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes):
        return _ask(TokenPrompt(tuple(prompt)), params, options)
    raise InvalidPrompt(f"prompt is a {type(prompt).__name__}, must be text or a list of token ids", "prompt")


def ask_chat(messages: Sequence[Message], params: SamplingParams | None, **options: Unpack[RequestOptions]) -> Ask:
    """Make a request of a conversation."""
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes):
        return _ask(ChatPrompt(tuple(messages)), params, options)
    raise InvalidPrompt("messages must be a list of dicts with role and content", "messages")


def _ask(prompt: Prompt, params: SamplingParams | None, options: RequestOptions) -> Ask:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return Ask(prompt=prompt, params=SamplingParams() if params is None else params, **given)


def _is_dict(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _invalid(field: str, value: object, limit: str) -> InvalidParameter:
    return InvalidParameter(f"{field} is {value!r:.80}, must be {limit}", field)

"""What a request or a call may have as its prompt."""

from typing import Any

from msgspec import Struct


class TextPrompt(Struct, frozen=True, tag="text"):
    """A prompt to tokenize as it is."""

    text: str


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    """A prompt that is token ids already."""

    token_ids: tuple[int, ...]
    """Unchecked: any Python ints a user typed."""


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """A conversation for the model's chat template."""

    messages: tuple[dict[str, Any], ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt

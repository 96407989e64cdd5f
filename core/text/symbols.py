"""The tokenizer of engines without a model: one character per token."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.errors import InvalidPrompt

FIRST = 0x20
"""Code point of token 0: the space, the first printable character."""
_SURROGATES = range(0xD800, 0xE000)
"""Code points that are no characters: left out."""


class SymbolsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options.tokenizer] of `symbols`."""

    vocab_size: int = 512
    eos_ids: tuple[int, ...] = ()


class SymbolsTokenizer:
    """Token i is the i-th character from the space on. Every id sequence is a text and the other way round."""

    special_ids: frozenset[int] = frozenset()

    def __init__(self, options: SymbolsOptions) -> None:
        self.vocab_size = options.vocab_size
        self.eos_ids = options.eos_ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return one id per character. Raises InvalidPrompt on a character out of the vocabulary."""
        ids = list(map(_id_of, text))
        for character, token_id in zip(text, ids, strict=True):
            if not 0 <= token_id < self.vocab_size:
                raise InvalidPrompt(f"prompt has {character!r}, which this vocabulary of symbols lacks", "prompt")
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return one character per id."""
        return "".join(self.token_text(token_id) for token_id in token_ids)

    def token_text(self, token_id: int) -> str:
        """Return the character of a token."""
        return _character(token_id)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Join the contents of all messages."""
        return "".join(str(message.get("content", "")) for message in messages)

    def detokenizer(self, prompt_tail: Sequence[int], skip_special_tokens: bool) -> "SymbolsDetokenizer":
        """Start a decoder; it needs no state."""
        return SymbolsDetokenizer()


class SymbolsDetokenizer:
    """Each token is a whole character, so that nothing is ever held back."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text of these ids."""
        return "".join(map(_character, token_ids))

    def flush(self) -> str:
        """Return nothing: nothing is held back."""
        return ""


def _character(token_id: int) -> str:
    code = FIRST + token_id
    return chr(code if code < _SURROGATES.start else code + len(_SURROGATES))


def _id_of(character: str) -> int:
    code = ord(character)
    if code in _SURROGATES:
        return -1
    return (code if code < _SURROGATES.start else code - len(_SURROGATES)) - FIRST

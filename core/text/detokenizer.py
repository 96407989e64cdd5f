"""Token ids to text, piece by piece: never half a character, and all pieces joined are the text of all ids."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

REPLACEMENT = "\ufffd"
SPACE = "\u2581"
"""Stands for a space inside SentencePiece tokens."""

_TAIL_TOKENS = 6
"""Prompt tokens that a decoder gets as context; a character has at most 4 bytes, a byte at least a token."""


def token_bytes(token: str) -> bytes:
    """Return the bytes that a byte-level BPE token stands for.

    A token with a character outside the byte alphabet stands for its own UTF-8 bytes, as in `tokenizers`.
    """
    try:
        return token.translate(_TO_BYTE).encode("latin-1") if _ALPHABET.issuperset(token) else token.encode()
    except UnicodeEncodeError:
        return token.encode()


def piece_bytes(piece: str) -> bytes:
    """Return the bytes that a SentencePiece token stands for: one byte if it is named <0x..>, else its text."""
    if len(piece) == len("<0x00>") and piece.startswith("<0x") and piece.endswith(">"):
        with suppress(ValueError):
            return bytes([int(piece[3:5], 16)])
    return piece.replace(SPACE, " ").encode()


def _byte_alphabet() -> dict[int, str]:
    """Map each byte to its character: printable Latin-1 to itself, the others to U+0100 and on.

    Source: Radford et al. 2019 (GPT-2), bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


_TO_BYTE = {ord(char): byte for byte, char in _byte_alphabet().items()}
_ALPHABET = frozenset(_byte_alphabet().values())


class ByteDetokenizer:
    """Decodes tokens that stand for bytes: looks up each token's bytes and decodes UTF-8 as they come.

    The prompt doesn't matter: a character that the prompt began and the output ends is U+FFFD in both.
    """

    __slots__ = ("_drops_space", "_rest", "_table")

    def __init__(self, table: Mapping[int, bytes] | Sequence[bytes], drops_space: bool = False) -> None:
        """Start at the beginning of a text.

        table: bytes by token id; empty for tokens that are left out.
        drops_space: the text's first character is left out if it is a space.
        """
        self._table = table
        self._drops_space = drops_space
        self._rest = b""
        """The beginning of a character, at most 3 bytes."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids; return the characters that are complete, U+FFFD where no later byte can make one."""
        data = self._rest + b"".join(map(self._table.__getitem__, token_ids))
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._rest = data[num_used:]
        return text

    def flush(self) -> str:
        """Return U+FFFD for a character that never got complete, else nothing."""
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "replace")


class ContextDetokenizer:
    """Decodes with any tokenizer: decodes the last few ids again and again, and returns what the new ones added.

    Text that ends in U+FFFD is held back, since the next id may complete the character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_tail: Sequence[int]) -> None:
        self._decode = decode
        context = list(prompt_tail[-_TAIL_TOKENS:])
        while context and decode(context).endswith(REPLACEMENT):
            context.pop()
        self._ids = context
        """Ids from the start of the context on; those before `_num_read` have their text returned already."""
        self._num_read = len(context)
        self._context_text = decode(context) if context else ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids; return the text that is certain. One by one: how many come at once never matters."""
        return "".join(map(self._push_one, token_ids))

    def flush(self) -> str:
        """Return the rest, unfinished characters as U+FFFD."""
        return self._read(self._decode(self._ids)) if len(self._ids) > self._num_read else ""

    def _push_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._context_text):
            return ""
        return self._read(text)

    def _read(self, text: str) -> str:
        """Give text out, and keep only what was new in it as the next context."""
        new = text[len(self._context_text) :]
        self._ids = self._ids[self._num_read :]
        self._num_read = len(self._ids)
        self._context_text = self._decode(self._ids)
        return new

"""The tokenizer of a model with a tokenizer.json, on top of the `tokenizers` library."""

import json
from collections.abc import Callable, Sequence, Set
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from headrace.core.errors import InvalidPrompt, UnsupportedModel
from headrace.core.interfaces import Detokenizer
from headrace.core.model_files.metadata import folder_eos_ids
from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.detokenizer import SPACE, ByteDetokenizer, ContextDetokenizer, piece_bytes, token_bytes
from headrace.core.text.template import ChatTemplate, folder_template, given_template
from headrace.core.text.vocabulary import blaming, is_library_error


def load_tokenizer(model: Path, chat_template: str | None = None) -> "FolderTokenizer":
    """Open a model's tokenizer; what has no tokenizer.json is converted first, once. Raises ModelError, ConfigError."""
    return FolderTokenizer(tokenizer_folder(model), chat_template)


class FolderTokenizer:
    """Text to ids and back (protocol Tokenizer). Changes nothing; safe to call from any thread."""

    def __init__(self, folder: Path, chat_template: str | None = None) -> None:
        """Open a folder.

        folder: with tokenizer.json; tokenizer_config.json, chat_template.jinja and generation_config.json if any.
        chat_template: text or file of a template to use instead of the model's own.
        """
        from tokenizers import Tokenizer

        with blaming(folder / "tokenizer.json"):
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            added = self._tokenizer.get_added_tokens_decoder()
            bytes_of, self._drops_space = _decoding(self._tokenizer.decoder)
            self.vocab_size: int = self._tokenizer.get_vocab_size()
            growth = _growth(self._tokenizer.normalizer)
        if growth > MAX_GROWTH:
            raise UnsupportedModel(
                f"{folder / 'tokenizer.json'}: its normalizer may make {growth} characters of one, at most {MAX_GROWTH}"
            )
        self.folder = folder
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.eos_ids = folder_eos_ids(folder)
        self._is_pieces = bytes_of is piece_bytes
        self._tables: tuple[TokenBytes, TokenBytes] | None = None
        """With special tokens and without, by skip_special_tokens; None: tokens have no bytes of their own."""
        if bytes_of is not None:
            token_of = self._tokenizer.id_to_token
            self._tables = TokenBytes(token_of, bytes_of, set()), TokenBytes(token_of, bytes_of, self.special_ids)
        if chat_template is not None:
            self._template = given_template(chat_template, folder)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written out in the text become their ids. Raises InvalidPrompt."""
        try:  # encode() alone would hold the GIL and work out offsets as well
            encoded = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
            ids: list[int] = encoded.ids
        except TypeError as error:  # what the library says of half a surrogate pair
            raise InvalidPrompt("prompt is no valid Unicode text", "prompt") from error
        except BaseException as error:
            if not is_library_error(error):
                raise
            raise InvalidPrompt(f"the model's tokenizer fails on this prompt: {error}", "prompt") from error
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of these ids; bytes that are no character become U+FFFD."""
        if self._tables is not None and self._is_pieces:
            decoder = ByteDetokenizer(self._tables[skip_special_tokens], self._drops_space)
            return decoder.push(token_ids) + decoder.flush()
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """Return one token alone as text, with its space if it begins with one."""
        if self._tables is not None:
            return self._tables[False][token_id].decode("utf-8", "replace")
        return self.decode((token_id,), skip_special_tokens=False)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Apply the chat template, ready for the assistant's answer. Raises InvalidPrompt."""
        if self._template is None:
            raise InvalidPrompt(
                "this model has no chat template; send a text prompt, or give engine.chat_template", "messages"
            )
        return self._template.render(messages)

    def detokenizer(self, prompt_tail: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Start an incremental decoder for one request."""
        if self._tables is None:
            return ContextDetokenizer(partial(self.decode, skip_special_tokens=skip_special_tokens), prompt_tail)
        table = self._tables[skip_special_tokens]
        is_first = self._drops_space and not ByteDetokenizer(table).push(prompt_tail)
        return ByteDetokenizer(table, drops_space=is_first)

    @cached_property
    def _template(self) -> ChatTemplate | None:
        return folder_template(self.folder)


class TokenBytes(dict[int, bytes]):
    """Bytes of each token that was asked for, by id; ids without a token, and those left out, are empty."""

    def __init__(self, token_of: Callable[[int], str | None], bytes_of: Callable[[str], bytes], skip: Set[int]) -> None:
        super().__init__(dict.fromkeys(skip, b""))
        self._token_of = token_of
        self._bytes_of = bytes_of

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id)
        found = self[token_id] = b"" if token is None else self._bytes_of(token)
        return found


MAX_GROWTH = 64
"""Characters that replacing may make of one; normalizers of real models make one or two."""


def _growth(normalizer: Any) -> int:
    """Return how many characters the replacements of a normalizer, one after the other, may make of one.

    normalizer: one of the library, or None.
    """
    growth, todo = 1, [json.loads(normalizer.__getstate__())] if normalizer is not None else []
    while todo:
        state = todo.pop()
        todo += state.get("normalizers", [])
        growth *= max(1, len(state.get("content", "")))
    return growth


_PIECE_DECODERS = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_DROP_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _decoding(decoder: Any) -> tuple[Callable[[str], bytes] | None, bool]:
    """Tell what bytes a token stands for, if each has its own, and whether the text's first space is left out.

    decoder: a decoder of the library, or None.
    """
    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    if state.get("type") == "ByteLevel":
        return token_bytes, False
    steps = state.get("decoders", []) if state.get("type") == "Sequence" else []
    if steps in (_PIECE_DECODERS, [*_PIECE_DECODERS, _DROP_SPACE]):
        return piece_bytes, _DROP_SPACE in steps
    return None, False

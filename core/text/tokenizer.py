"""The tokenizer of a model with a tokenizer.json, on top of the `tokenizers` library."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from headrace.core.errors import InvalidPrompt, ModelFileDamaged
from headrace.core.interfaces import Detokenizer
from headrace.core.model_files.metadata import folder_eos_ids, read_json
from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.detokenizer import ByteDetokenizer, ContextDetokenizer, token_bytes
from headrace.core.text.template import ChatTemplate

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_tokenizer(model: Path) -> "FolderTokenizer":
    """Open a model's tokenizer; that of a GGUF file is converted first, once. Raises ModelError."""
    return FolderTokenizer(tokenizer_folder(model))


class FolderTokenizer:
    """Text to ids and back (protocol Tokenizer). Changes nothing; safe to call from any thread."""

    def __init__(self, folder: Path) -> None:
        """folder: with tokenizer.json; tokenizer_config.json, chat_template.jinja and generation_config.json if any."""
        from tokenizers import Tokenizer, decoders

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises plain Exception
            raise ModelFileDamaged(f"{folder / 'tokenizer.json'} can't be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._is_byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        self.folder = folder
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.eos_ids = folder_eos_ids(folder)
        self.vocab_size = self._tokenizer.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written out in the text become their ids. Raises InvalidPrompt."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:  # what the library says of half a surrogate pair
            raise InvalidPrompt("prompt is no valid Unicode text", "prompt") from error
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of these ids; bytes that are no character become U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """Return one token alone as text."""
        if self._is_byte_level:
            return self._shown[token_id].decode("utf-8", "replace")
        return self.decode((token_id,), skip_special_tokens=False)

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Apply the chat template, ready for the assistant's answer. Raises InvalidPrompt."""
        if self._template is None:
            raise InvalidPrompt("this model has no chat template, send a text prompt instead", "messages")
        return self._template.render(messages)

    def detokenizer(self, prompt_tail: Sequence[int], skip_special_tokens: bool) -> Detokenizer:
        """Start an incremental decoder for one request."""
        if self._is_byte_level:
            return ByteDetokenizer(self._skipped if skip_special_tokens else self._shown)
        return ContextDetokenizer(partial(self.decode, skip_special_tokens=skip_special_tokens), prompt_tail)

    @cached_property
    def _shown(self) -> list[bytes]:
        """Bytes of each token id; ids of the model's padded vocabulary that have no token are empty."""
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        config = self.folder / "config.json"
        padded = read_json(config).get("vocab_size") if config.is_file() else None
        table = [b""] * max(padded if isinstance(padded, int) else 0, *(token_id + 1 for token_id in vocab.values()))
        for token, token_id in vocab.items():
            table[token_id] = token_bytes(token)
        return table

    @cached_property
    def _skipped(self) -> list[bytes]:
        """The same without special tokens."""
        return [b"" if token_id in self.special_ids else piece for token_id, piece in enumerate(self._shown)]

    @cached_property
    def _template(self) -> ChatTemplate | None:
        file = self.folder / "tokenizer_config.json"
        config = read_json(file) if file.is_file() else {}
        source = _template_source(self.folder, config)
        names = {role: text for role in _ROLES if (text := _token_name(config.get(role)))}
        return ChatTemplate(source, names) if source else None


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """Find a model's default template: chat_template.jinja, or one or several in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _token_name(found: object) -> str | None:
    """Read a special token, which is a string or an object with `content`."""
    content = found.get("content") if isinstance(found, dict) else found
    return content if isinstance(content, str) else None

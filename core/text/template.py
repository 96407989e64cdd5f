"""Chat templates: a conversation becomes the prompt that the model was trained on.

Not here: the sandbox that templates run in, and the names they may use (sandbox.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, InvalidPrompt, ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.metadata import read_json
from headrace.core.text.sandbox import limited_cpu, template_environment

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
"""Special tokens whose texts templates may use."""
ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatTemplate:
    """One model's template, compiled. Raises UnsupportedModel if it is no template."""

    def __init__(self, source: str, names: dict[str, str]) -> None:
        try:
            self._template = template_environment().from_string(source)
        except Exception as error:  # Jinja's own errors, and those of Python, which compiles what Jinja makes of it
            raise UnsupportedModel(f"the chat template can't be compiled: {error}") from error
        self._names = names
        """Texts of special tokens, such as bos_token."""

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Return the prompt, ready for the assistant's answer. Raises InvalidPrompt naming the message at fault."""
        if not messages:
            raise InvalidPrompt("messages is empty, must have at least one message", "messages")
        checked = [_checked(index, message) for index, message in enumerate(messages)]
        if all(message["role"] == "assistant" for message in checked):
            raise InvalidPrompt("messages has only assistant messages, so there is nothing to answer", "messages")
        try:
            with limited_cpu():
                return self._template.render(messages=checked, add_generation_prompt=True, **self._names)
        except Exception as error:  # a template is a program: it may fail in any way on what it doesn't expect
            raise InvalidPrompt(f"the model's chat template refuses these messages: {error}", "messages") from error


def folder_template(folder: Path) -> ChatTemplate | None:
    """Return the template of a model folder, if it has one. Raises UnsupportedModel, ModelFileDamaged."""
    config = _tokenizer_config(folder)
    source = _own_source(folder, config)
    return ChatTemplate(source, _special_names(config)) if source else None


def given_template(template: str, folder: Path) -> ChatTemplate:
    """Return the template that a user gave instead of the model's own: its text, or the name of its file.

    Raises ConfigError if there is no such file or it is no template.
    """
    source = template
    if not any(mark in template for mark in ("{{", "{%", "{#", "\n")):
        try:
            source = Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"engine.chat_template is {template!r:.80}, must be a template or a file with one: {error}"
            ) from error
    try:
        return ChatTemplate(source, _special_names(_tokenizer_config(folder)))
    except UnsupportedModel as error:
        raise ConfigError(f"engine.chat_template: {error}") from error


def _own_source(folder: Path, config: dict[str, Any]) -> str | None:
    """Find a model's default template: chat_template.jinja, or one or several in tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelFileDamaged(f"{file} can't be read: {error}") from error
    found = config.get("chat_template")
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict) and entry.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    return read_json(file) if file.is_file() else {}


def _special_names(config: dict[str, Any]) -> dict[str, str]:
    """Read the texts of special tokens, each a string or an object with `content`."""
    names = {}
    for role in SPECIAL_ROLES:
        found = config.get(role)
        content = found.get("content") if isinstance(found, dict) else found
        if isinstance(content, str):
            names[role] = content
    return names


def _checked(index: int, message: object) -> dict[str, Any]:
    """Return a message with its content as one string, whatever shape it came in."""
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidPrompt(f"{where} is {message!r:.80}, must be an object with role and content", where)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidPrompt(f"{where}.role is {role!r:.80}, must be one of {', '.join(ROLES)}", f"{where}.role")
    content = _text(f"{where}.content", message.get("content"))
    if not content and role != "tool" and not (role == "assistant" and message.get("tool_calls")):
        raise InvalidPrompt(f"{where}.content is empty, must be text", f"{where}.content")
    return {**message, "content": content}


def _text(where: str, content: object) -> str:
    """Join a list of text parts; None becomes empty."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidPrompt(f"{where} is {content!r:.80}, must be text or a list of text parts", where)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise InvalidPrompt(f"{where}[{index}] is {part!r:.80}, must be a part of type text", f"{where}[{index}]")
        texts.append(text)
    return "".join(texts)

"""Every error Headrace raises on purpose, each with the HTTP status a server answers it with.

HeadraceError                     500
├── RequestError                  400   one request is at fault; the engine lives on
│   ├── InvalidParameter          400   a field of a request has a value out of its limits
│   ├── InvalidPrompt             400   empty, not tokenizable, or ids out of the vocabulary
│   ├── PromptTooLong             400   more tokens than the context or the KV pool can hold
│   ├── BatchRefused              400   another request of the same submission is at fault
│   ├── QueueFull                 503   more open requests than engine.max_queued_requests
│   ├── DeadlineExceeded          408   the request's own deadline_s passed
│   └── RequestFailed             500   the request's row, plugin or step failed while it ran
├── BusyError                     409   a call needs an idle engine (reset of a prefix cache in use)
├── ConfigError                   500   a config file, option or argument is wrong
│   └── PluginError               500   a plugin is unknown, doubled, broken or misspelt
├── ModelError                    500   a model can't be used
│   ├── ModelNotFound             404   no such folder, file, catalogue name
│   ├── DownloadFailed            500   a catalogue model couldn't be fetched
│   ├── ModelFileDamaged          500   a file's content contradicts its format
│   └── UnsupportedModel          500   a sound file that asks for something that isn't built in
└── EngineClosed                  503   the engine was closed or failed as a whole
"""

from typing import ClassVar

import msgspec


class HeadraceError(Exception):
    """Root of all errors raised on purpose."""

    status: ClassVar[int] = 500


class RequestError(HeadraceError):
    """One request is at fault; `field` names its wrong field where there is one."""

    status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidParameter(RequestError):
    """A field of a request has a value out of its limits."""


class InvalidPrompt(RequestError):
    """The prompt is empty, not tokenizable, or has ids out of the vocabulary."""


class PromptTooLong(RequestError):
    """The request needs more tokens than the context or the KV pool can hold."""


class BatchRefused(RequestError):
    """Another request of the same submission is at fault, so that none of them runs."""


class QueueFull(RequestError):
    """More open requests than `engine.max_queued_requests`."""

    status = 503


class DeadlineExceeded(RequestError):
    """The request's own `deadline_s` passed before it ended."""

    status = 408


class RequestFailed(RequestError):
    """The request's row, plugin or step failed while it ran."""

    status = 500


class BusyError(HeadraceError):
    """A call needs an idle engine."""

    status = 409


class ConfigError(HeadraceError):
    """A config file, option or argument is wrong."""


class PluginError(ConfigError):
    """A plugin is unknown, doubled, broken or misspelt."""


class ModelError(HeadraceError):
    """A model can't be used."""


class ModelNotFound(ModelError):
    """No folder, file or catalogue entry has this name."""

    status = 404


class DownloadFailed(ModelError):
    """A catalogue model couldn't be fetched."""


class ModelFileDamaged(ModelError):
    """A file's content contradicts its format."""


class UnsupportedModel(ModelError):
    """A sound file asks for something that isn't built in."""


class EngineClosed(HeadraceError):
    """The engine was closed, or failed as a whole."""

    status = 503


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as a message carries it between processes."""

    kind: str
    """Name of a class of this file."""
    message: str
    field: str | None = None


def describe(error: BaseException) -> ErrorInfo:
    """Pack an error for the way to another process; a foreign one becomes RequestFailed, naming its type."""
    if isinstance(error, RequestError):
        return ErrorInfo(type(error).__name__, str(error), error.field)
    if isinstance(error, HeadraceError):
        return ErrorInfo(type(error).__name__, str(error))
    return ErrorInfo("RequestFailed", f"{type(error).__name__}: {error}")


def restore(info: ErrorInfo) -> HeadraceError:
    """Rebuild the error that `describe` packed."""
    error_class = _classes().get(info.kind, HeadraceError)
    if issubclass(error_class, RequestError):
        return error_class(info.message, info.field)
    return error_class(info.message)


def _classes() -> dict[str, type[HeadraceError]]:
    found: dict[str, type[HeadraceError]] = {}
    todo = [HeadraceError]
    while todo:
        error_class = todo.pop()
        found[error_class.__name__] = error_class
        todo.extend(error_class.__subclasses__())
    return found

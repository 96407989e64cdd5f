"""Errors as HTTP answers, in the shape of OpenAI's API.

HttpError   4xx   what only a server can say: no such path, no such model, wrong key, body too large
"""

import re

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import ErrorInfo, HeadraceError, RequestError, describe

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {"PromptTooLong": "context_length_exceeded"}
"""Codes that clients know from OpenAI; others are the class's name."""
_RETRY_AFTER = (429, 503)


class HttpError(HeadraceError):
    """A refusal that has nothing to do with the engine."""

    def __init__(self, http_status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.field = field
        self.code = code


class ClientGone(Exception):
    """The client closed its connection: there is nobody to answer."""


class ErrorDetail(Struct, frozen=True):
    """What went wrong."""

    message: str
    type: str
    """invalid_request_error, authentication_error, not_found_error, rate_limit_error or server_error."""
    param: str | None
    """The field at fault."""
    code: str | None
    """Short name of the error."""


class ErrorBody(Struct, frozen=True):
    """Body of every answer that is no success, and last event of a stream that fails."""

    error: ErrorDetail


def status_of(error: Exception) -> int:
    """Return the HTTP status an error is answered with."""
    if isinstance(error, HttpError):
        return error.http_status
    return error.status if isinstance(error, HeadraceError) else 500


def error_body(error: Exception) -> ErrorBody:
    """Describe an error; what isn't raised on purpose shows its type only."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    if isinstance(error, HttpError):
        return ErrorBody(ErrorDetail(str(error), kind, error.field, error.code))
    if isinstance(error, HeadraceError):
        info: ErrorInfo = describe(error)
        field = error.field if isinstance(error, RequestError) else None
        return ErrorBody(ErrorDetail(info.message, kind, field, _CODES.get(info.kind, _snake(info.kind))))
    return ErrorBody(ErrorDetail(f"internal error: {type(error).__name__}", kind, None, "internal_error"))


def error_response(error: Exception) -> Response:
    """Make the answer to a request that failed before anything was sent."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status in _RETRY_AFTER else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode(error_body(error))
    return Response(body, status, headers, media_type="application/json")


async def answer_error(_request: Request, error: Exception) -> Response:
    """Answer for Starlette's exception handlers."""
    return error_response(error)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    text = {404: f"there is no {request.url.path}; see /docs", 405: f"{request.method} isn't for {request.url.path}"}
    response = error_response(HttpError(error.status_code, text.get(error.status_code, error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()

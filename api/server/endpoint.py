"""The door in front of the endpoints, and what every one that generates has in common."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.errors import HeadraceError
from headrace.server.body import read_body
from headrace.server.errors import ClientGone, HttpError, error_response
from headrace.server.reply import Reply
from headrace.server.service import Service

OPEN_PATHS = ("/health", "/version", "/metrics", "/docs", "/openapi.json")
"""What anyone may ask, always: also without a key and while draining."""


class Door:
    """ASGI middleware: checks keys, limits open requests, and gives each answer its request's id back."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._keys = [key.encode() for key in service.options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it with its error."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _with_request_id(headers, send)
        try:
            self._check_key(headers)
            with self._service.admitted():
                await self._app(scope, receive, send)
        except HeadraceError as error:
            await error_response(error)(scope, receive, send)

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise HttpError(
                401, "the API key is missing or wrong; send Authorization: Bearer KEY", code="invalid_api_key"
            )


def _with_request_id(headers: Headers, send: Send) -> Send:
    request_id = headers.get("x-request-id")
    if request_id is None:
        return send

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("latin-1"))]
        await send(message)

    return send_with_id


Handle = Callable[[bytes, Headers, Reply], Coroutine[Any, Any, None]]


class Endpoint:
    """ASGI application of one path: reads the body, answers, and stops at once when the client goes away."""

    def __init__(self, service: Service, handle: Handle) -> None:
        self._service = service
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises HeadraceError where nothing was sent yet."""
        headers = Headers(scope=scope)
        try:
            async with self._service.reading():
                body = await read_body(receive, headers, self._service.options.max_body_bytes)
            await while_connected(receive, self._handle(body, headers, Reply(send)))
        except ClientGone:
            return


async def while_connected(receive: Receive, work: Awaitable[None]) -> None:
    """Do work until it ends, or until the client goes away: then it is cancelled, and ClientGone raised."""
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(receive), name="headrace-http-watch")
            try:
                await work
            except Exception as error:  # taken out of the group, which would wrap it
                failure = error
            watch.cancel()
    except* ClientGone:
        failure = failure or ClientGone()
    if failure is not None:
        raise failure


async def _watch(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone

"""One HTTP answer: JSON at once, or server-sent events. Headers go out with the first byte, never before."""

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.types import Send

_JSON = [(b"content-type", b"application/json")]
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class Reply:
    """Sends the answer to one request. Owner: the request's task."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_started = False

    async def json(self, value: Any) -> None:
        """Answer 200 with one JSON value; numbers that JSON lacks become null."""
        body = _encode(value)
        await self._start([*_JSON, (b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, values: Iterable[Any], *, is_last: bool = False) -> None:
        """Send values as events; the last ones with the terminator."""
        body = b"".join([b"data: " + _encode(value) + b"\n\n" for value in values])
        if is_last:
            body += DONE
        if not self.has_started:
            await self._start(_EVENTS)
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

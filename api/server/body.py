"""Request bodies: read up to a limit, decoded into Structs with errors that name the field."""

import re
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from headrace.core.errors import InvalidParameter
from headrace.server.errors import ClientGone, HttpError

T = TypeVar("T")
_DRAINED = 8
"""Times the limit that is read and thrown away: a client that still sends doesn't look at the answer."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the whole body. Raises HttpError 413 past `limit` bytes, ClientGone where the client left."""
    chunks: list[bytes] = []
    size = 0
    is_announced_long = int(headers.get("content-length") or 0) > limit
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit and not is_announced_long:
            chunks.append(chunk)
        else:
            chunks.clear()
        if not message.get("more_body", False) or size > _DRAINED * limit:
            break
    if size > limit:
        raise HttpError(413, f"the body has over {limit} bytes (--max-body-bytes); send less", code="body_too_large")
    return b"".join(chunks)


def decode_body(body: bytes, headers: Headers, into: type[T]) -> T:
    """Decode JSON. Unknown fields are ignored; everything else that is wrong raises with the field's path."""
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise HttpError(400, f"Content-Type is {kind:.80}, must be application/json", code="wrong_content_type")
    try:
        return msgspec.json.decode(body, type=into)
    except msgspec.ValidationError as error:
        complaint, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or _missing(complaint)
        raise InvalidParameter(f"{field or 'the body'}: {complaint[:1].lower()}{complaint[1:]}", field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is no valid JSON: {error}", code="invalid_json") from None


def _missing(complaint: str) -> str | None:
    found = re.search(r"missing required field `(\w+)`", complaint)
    return found[1] if found else None

"""headrace trace: what a running server did lately, as a file."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.core.errors import HeadraceError


class TraceFailed(HeadraceError):
    """A server gave no trace."""


def trace(
    url: Annotated[str, typer.Option(help="The server; unix:PATH is a socket.")] = "http://127.0.0.1:8000",
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("trace.json"),
    api_key: Annotated[str | None, typer.Option(help="Bearer token.")] = None,
) -> None:
    """Write what a server's processes did lately to a file that Perfetto (https://ui.perfetto.dev) opens."""
    import asyncio

    import msgspec

    content = asyncio.run(_fetch(url, api_key))
    events = msgspec.json.decode(content)["traceEvents"]
    num_spans = sum(event["ph"] == "X" for event in events)
    output.write_bytes(content)
    print(f"{output} holds {num_spans} spans; open it at https://ui.perfetto.dev")


async def _fetch(url: str, api_key: str | None) -> bytes:
    """Return a server's trace. Raises TraceFailed."""
    import aiohttp

    from headrace.bench.client import open_session

    try:
        async with open_session(url, api_key) as session, session.get("/trace") as answer:
            content = await answer.read()
            if answer.status != 200:
                raise TraceFailed(f"{url} gave no trace: status {answer.status}: {content[:300].decode()}")
            return content
    except aiohttp.ClientError as error:
        raise TraceFailed(f"{url} gave no trace: {error}") from None

"""headrace chat: a conversation in the terminal. Ctrl-C stops an answer; at the prompt it leaves."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import INLINE, takes_options

if TYPE_CHECKING:
    from headrace import Engine, SamplingParams

Message = dict[str, Any]

HELP = "/reset forgets the conversation, /exit leaves; Ctrl-C stops an answer."


@takes_options
def chat(
    model: Annotated[str | None, typer.Argument(help="Model folder, GGUF file, catalogue name or hub id.")] = None,
    system: Annotated[str | None, typer.Option(help="System message, instead of the chat template's own.")] = None,
    *,
    engine: dict[str, Any],
    sampling: dict[str, Any],
) -> None:
    """Talk with a model."""
    import asyncio

    from headrace.core.params import SamplingParams

    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and history

    params = SamplingParams(**{"max_tokens": None} | sampling)
    start = [{"role": "system", "content": system}] if system else []
    asyncio.run(_chat(model, engine, params, start))


async def _chat(model: str | None, engine: dict[str, Any], params: "SamplingParams", start: list[Message]) -> None:
    from headrace import Engine

    async with Engine(model, **INLINE | engine) as running:
        print(HELP, file=sys.stderr)
        history = list(start)
        while (line := _read_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/reset":
                    history = list(start)
                case command if command.startswith("/"):
                    print(f"unknown command {command}. {HELP}", file=sys.stderr)
                case text:
                    history = await _turn(running, [*history, {"role": "user", "content": text}], params)


def _read_line() -> str | None:
    """Read what the user types; None at the end of the input or after Ctrl-C.

    Blocks the event loop, on which nothing runs between two answers.
    """
    with _on_interrupt(signal.default_int_handler):
        try:
            return input("> ")
        except (EOFError, KeyboardInterrupt):
            return None


async def _turn(engine: "Engine", messages: list[Message], params: "SamplingParams") -> list[Message]:
    """Print the answer as it comes; returns the conversation with it, or with as much as came before Ctrl-C.

    A request that is refused is told, and leaves the conversation as it was before.
    """
    import asyncio

    from headrace.core.errors import RequestError

    texts: list[str] = []
    answer = asyncio.create_task(_print_answer(engine, messages, params, texts))
    loop = asyncio.get_running_loop()
    try:
        with _on_interrupt(lambda *_: loop.call_soon_threadsafe(answer.cancel)):
            await answer
    except asyncio.CancelledError:
        if not answer.cancelled():
            raise
    except RequestError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return messages[:-1]
    finally:
        print()
    return [*messages, {"role": "assistant", "content": "".join(texts)}]


async def _print_answer(engine: "Engine", messages: list[Message], params: "SamplingParams", texts: list[str]) -> None:
    async with engine.stream_chat(messages, params) as stream:
        async for chunk in stream:
            texts.append(chunk.text)
            print(chunk.text, end="", flush=True)


@contextmanager
def _on_interrupt(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""headrace generate: continue prompts, several at once, with their text as it comes."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from headrace.cli.options import INLINE, takes_options
from headrace.core.errors import InvalidPrompt

if TYPE_CHECKING:
    from headrace import Engine, SamplingParams, Stream
    from headrace.cli.show import Show


@takes_options
def generate(
    model: Annotated[str | None, typer.Argument(help="Model folder, GGUF file, catalogue name or hub id.")] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; repeatable. None: standard input.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt instead of text.")] = False,
    *,
    engine: dict[str, Any],
    sampling: dict[str, Any],
) -> None:
    """Continue prompts and say how fast it was."""
    import asyncio

    from headrace.core.params import SamplingParams

    params = SamplingParams(**sampling)
    prompts = prompt or [_piped()]
    asyncio.run((_print_json if json else _print_text)(model, engine, prompts, params))


def _piped() -> str:
    if sys.stdin.isatty():
        raise InvalidPrompt("no prompt was given; use --prompt, or pipe text in", "prompt")
    return sys.stdin.read()


async def _print_json(model: str | None, engine: dict[str, Any], prompts: list[str], params: "SamplingParams") -> None:
    import asyncio

    import msgspec

    from headrace import Engine
    from headrace.ask import ask_prompt

    async with Engine(model, **INLINE | engine) as running:
        streams = running.submit([ask_prompt(prompt, params) for prompt in prompts])
        for prompt, result in zip(prompts, await asyncio.gather(*[stream.result() for stream in streams]), strict=True):
            print(msgspec.json.encode({"prompt": prompt, **msgspec.structs.asdict(result)}).decode())


async def _print_text(model: str | None, engine: dict[str, Any], prompts: list[str], params: "SamplingParams") -> None:
    import asyncio
    import shutil

    from headrace import Engine
    from headrace.ask import ask_prompt
    from headrace.cli.show import ShowLines, ShowOne

    started = time.monotonic()
    several = len(prompts) > 1 or params.n > 1
    show: Show = ShowLines(sys.stdout, shutil.get_terminal_size().columns) if several else ShowOne(sys.stdout)
    async with Engine(model, **INLINE | engine) as running:
        loaded = time.monotonic()
        streams = running.submit([ask_prompt(prompt, params) for prompt in prompts])
        labels = [f"[{number}" for number in range(1, len(prompts) + 1)]
        reads = [
            _follow(stream, show, label, prompt if several else "", params.n)
            for stream, label, prompt in zip(streams, labels, prompts, strict=True)
        ]
        read = await asyncio.gather(*reads)
        print(_summary(running, loaded - started, time.monotonic() - loaded, read), file=sys.stderr)


class _Read(Struct, frozen=True):
    """What one prompt's stream gave."""

    first_token_at: float
    num_tokens: int


async def _follow(stream: "Stream", show: "Show", label: str, prompt: str, n: int) -> _Read:
    first_token_at = 0.0
    num_tokens = 0
    labels = [f"{label}]" if n == 1 else f"{label}.{index}]" for index in range(n)]
    for each in labels:
        show.add(each, prompt)
    async for chunk in stream:
        if chunk.token_ids and not num_tokens:
            first_token_at = time.monotonic()
        num_tokens += len(chunk.token_ids)
        show.add(labels[chunk.index], chunk.text)
        if chunk.finish_reason is not None:
            show.end(labels[chunk.index])
    return _Read(first_token_at, num_tokens)


def _summary(engine: "Engine", load_s: float, generate_s: float, read: list[_Read]) -> str:
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in engine.facts.timings.items())
    num_tokens = sum(each.num_tokens for each in read)
    ended = time.monotonic()
    first_s = min((each.first_token_at for each in read if each.num_tokens), default=ended) - (ended - generate_s)
    return (
        f"loaded in {load_s:.2f} s{f' ({stages})' if stages else ''}; first token after {first_s:.2f} s more; "
        f"{num_tokens} tokens in {generate_s:.2f} s: {num_tokens / generate_s:.1f} tokens/s"
    )

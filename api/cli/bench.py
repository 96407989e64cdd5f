"""headrace bench: measure servers."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

bench = typer.Typer(name="bench", help="Measure servers.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Keep `serve` a subcommand though it is the only one."""


@bench.command()
def serve(
    url: Annotated[str, typer.Option(help="Any server with OpenAI's API; unix:PATH is a socket.")] = (
        "http://127.0.0.1:8000"
    ),
    model: Annotated[str, typer.Option(help="Name of the model; else the first that the server lists.")] = "",
    rate: Annotated[float | None, typer.Option(help="Requests a second, at random times.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests open at once, instead of a rate.")] = None,
    num_prompts: Annotated[int, typer.Option(help="Requests to send.")] = 100,
    input_len: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    prompts: Annotated[Path | None, typer.Option(help="File of prompts to send instead: JSON lines.")] = None,
    endpoint: Annotated[Literal["completions", "chat"], typer.Option(help="What to ask for.")] = "completions",
    goodput: Annotated[
        str | None, typer.Option(help="Goals in ms, such as ttft:200,itl:50; of ttft, itl and e2e.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of each request.")] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for all of output-len; a field that not all know.")] = True,
    api_key: Annotated[str | None, typer.Option(help="Bearer token.")] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and times.")] = 0,
    output: Annotated[Path | None, typer.Option(help="File for the result, as JSON.")] = None,
) -> None:
    """Put a load on a server: time to first token, between tokens and to the end, throughput, goodput."""
    import msgspec
    import uvloop

    from headrace.bench.client import Target
    from headrace.bench.report import read_goals
    from headrace.bench.serve import Load, measure, show

    load = Load(
        num_prompts=num_prompts,
        rate=rate,
        concurrency=concurrency,
        input_len=input_len,
        prompts=prompts,
        seed=seed,
        goals=read_goals(goodput),
    )
    target = Target(
        url=url,
        model=model,
        is_chat=endpoint == "chat",
        output_len=output_len,
        ignore_eos=ignore_eos,
        temperature=temperature,
        api_key=api_key,
    )
    report = uvloop.run(measure(target, load, shows_progress=sys.stderr.isatty()))
    show(report)
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report, enc_hook=str)))
    if not report.summary.completed:
        raise typer.Exit(1)

"""headrace bench serve: put a load on a server and say how it did."""

import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.bench.client import Client, Record, Target
from headrace.bench.load import at_concurrency, at_rate
from headrace.bench.prompts import random_prompts, read_prompts
from headrace.bench.report import Distribution, Goal, Summary, summarize
from headrace.core.errors import InvalidParameter

_SHOWN_ERRORS = 3


class Load(Struct, frozen=True, kw_only=True):
    """What to put on a server. Raises InvalidParameter naming the option."""

    num_prompts: int
    rate: float | None
    """Requests a second."""
    concurrency: int | None
    """Open requests, instead of a rate."""
    input_len: int
    """Tokens of each prompt, template included."""
    prompts: Path | None
    """File of prompts to send instead."""
    seed: int
    goals: tuple[Goal, ...]

    def __post_init__(self) -> None:
        """Check limits that types can't say."""
        if (self.rate is None) == (self.concurrency is None):
            raise InvalidParameter("--rate and --concurrency: give one of them", "rate")
        for name in ("num_prompts", "concurrency", "input_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidParameter(f"--{name.replace('_', '-')} is {value}, must be at least 1", name)
        if self.rate is not None and not self.rate > 0:
            raise InvalidParameter(f"--rate is {self.rate}, must be above 0", "rate")


class Report(Struct, frozen=True, kw_only=True):
    """What a result file holds."""

    headrace: str
    """Version."""
    target: Target
    load: Load
    summary: Summary
    requests: list[Record]


async def measure(target: Target, load: Load, *, shows_progress: bool) -> Report:
    """Put the load on the target. Raises BenchFailed where the server can't be used at all."""
    from tqdm import tqdm

    async with Client(target, time.perf_counter()) as client:
        if load.prompts is not None:
            prompts = read_prompts(load.prompts, load.num_prompts)
        else:
            prompts = await random_prompts(client, load.num_prompts, load.input_len, load.seed)
        with tqdm(total=len(prompts), desc="Requests", disable=not shows_progress, dynamic_ncols=True) as bar:
            if load.rate is not None:
                records = await at_rate(client, prompts, load.rate, load.seed, bar.update)
            else:
                assert load.concurrency is not None
                records = await at_concurrency(client, prompts, load.concurrency, bar.update)
    return Report(
        headrace=version("headrace"),
        target=msgspec.structs.replace(client.target, api_key=None),
        load=load,
        summary=summarize(records, load.goals),
        requests=records,
    )


def show(report: Report) -> None:
    """Print the figures as tables."""
    from rich.console import Console
    from rich.table import Table

    summary, console = report.summary, Console()
    figures = Table(show_header=False, box=None, title=f"{report.target.model} at {report.target.url}")
    figures.add_column()
    figures.add_column(justify="right")
    for name, value in _figures(summary):
        figures.add_row(name, value)
    console.print(figures)
    latencies = Table("ms", box=None)
    for column in Distribution.__struct_fields__:
        latencies.add_column(column, justify="right")
    rows = (("TTFT", summary.ttft_ms), ("ITL", summary.itl_ms), ("end to end", summary.e2e_ms))
    for name, values in rows:
        if values is not None:
            latencies.add_row(name, *(f"{value:.2f}" for value in msgspec.structs.astuple(values)))
    console.print(latencies)
    for text, number in _errors(report.requests):
        console.print(f"{number} failed: {text}", style="red", markup=False)


def _figures(summary: Summary) -> list[tuple[str, str]]:
    figures = [
        ("requests completed", f"{summary.completed}"),
        ("requests failed", f"{summary.failed}"),
        ("duration", f"{summary.duration_s:.2f} s"),
        ("prompt tokens", f"{summary.prompt_tokens}"),
        ("output tokens", f"{summary.output_tokens}"),
        ("requests", f"{summary.requests_per_s:.2f} /s"),
        ("output tokens", f"{summary.output_tokens_per_s:.1f} /s"),
        ("all tokens", f"{summary.total_tokens_per_s:.1f} /s"),
    ]
    if summary.goodput_per_s is not None:
        figures.append(("goodput", f"{summary.goodput_per_s:.2f} requests/s"))
    return figures


def _errors(records: Sequence[Record]) -> list[tuple[str, int]]:
    return Counter(record.error for record in records if record.error is not None).most_common(_SHOWN_ERRORS)

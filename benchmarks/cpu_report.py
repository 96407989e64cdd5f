"""Medians, spreads and ratios of what `make bench-cpu` measured. Reads its JSON, measures nothing."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Results = dict[str, Any]
"""What cpu.py writes: `about`, `offline` and `http`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of equal runs."""

    median: float
    lowest: float
    highest: float
    number: int

    def __str__(self) -> str:
        """Return the median, and the range where there were several runs."""
        digits = 0 if self.median >= 100 else 1
        text = f"{self.median:.{digits}f}"
        return text if self.number == 1 else f"{text} ({self.lowest:.{digits}f}-{self.highest:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Goal:
    """By how many times one of ours is to be faster than the fastest of theirs."""

    name: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    times: dict[str, float]
    """By column: streams decoding, `prefill`, or `http`."""


EXACT = ("headrace-f32", "headrace-f16", "headrace-bf16")
LLAMA_4 = ("llama-q4_1", "llama-q4_0")
GOALS = (
    Goal("exact / vLLM f32", EXACT, ("vllm-f32",), {"1": 4.0, "16": 3.3, "32": 2.8, "prefill": 1.9}),
    Goal("exact / llama.cpp F16", EXACT, ("llama-f16",), {"1": 1.2, "16": 1.6, "32": 1.5, "prefill": 1.15}),
    Goal("Q4_1 fast / llama.cpp 4 bit", ("headrace-q4_1-fast",), LLAMA_4, {"1": 2, "16": 2.5, "32": 2.6, "prefill": 2}),
    Goal("Q4_1 / llama.cpp 4 bit", ("headrace-q4_1",), LLAMA_4, {"1": 1.3, "16": 1.7, "32": 1.7, "prefill": 1.4}),
    Goal("Q8_0 / llama.cpp Q8_0", ("headrace-q8_0",), ("llama-q8_0",), {"1": 1.3, "16": 2, "32": 2.1, "prefill": 1.6}),
    Goal("f32 / vLLM f32", ("headrace-f32",), ("vllm-f32",), {"http": 2.8}),
    Goal("f16 / llama.cpp F16", ("headrace-f16",), ("llama-f16",), {"http": 1.3}),
    Goal("Q4_1 fast / llama.cpp Q4_1", ("headrace-q4_1-fast",), ("llama-q4_1",), {"http": 2.0}),
)


def spread(values: Sequence[float]) -> Spread:
    """Describe equal runs, at least one."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def decode_rate(run: Results) -> float | None:
    """Return tokens per second while all streams decode; None where nothing was decoded."""
    return run.get("decode_tokens_per_s")


def prefill_rate(run: Results) -> float:
    """Return prompt tokens per second until all streams have their first token."""
    return float(run["streams"] * run["input_len"] / run["prefill_s"])


def whole_rate(run: Results) -> float:
    """Return output tokens per second from the first request to the last token."""
    return float(run["streams"] * run["max_tokens"] / run["total_s"])


def offline(results: Results, name: str, column: str, rate: Callable[[Results], float | None]) -> Spread | None:
    """Return a rate of one contender; column: number of streams, or prefill."""
    runs = [run for run in results["offline"] if (run["contender"], run["column"]) == (name, column)]
    rates = [found for run in runs if (found := rate(run)) is not None]
    return spread(rates) if rates else None


def http(results: Results, name: str, *path: str) -> Spread | None:
    """Return a figure of one contender's server by its path in the summary."""
    values = []
    for run in results["http"]:
        if run["contender"] == name:
            value: Any = run
            for part in path:
                value = value[part]
            values.append(float(value))
    return spread(values) if values else None


def rate_of(results: Results, name: str, column: str) -> Spread | None:
    """Return what goals compare: prefill or decode offline, or output tokens through HTTP."""
    if column == "http":
        return http(results, name, "output_tokens_per_s")
    return offline(results, name, column, prefill_rate if column == "prefill" else decode_rate)


def columns(results: Results) -> list[str]:
    """Return the columns of the offline table, as measured."""
    return list(dict.fromkeys(run["column"] for run in results["offline"]))


def names(results: Results) -> list[str]:
    """Return the contenders, as measured."""
    return list(dict.fromkeys(run["contender"] for run in [*results["offline"], *results["http"]]))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown has it, with columns as wide as they need."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def offline_table(results: Results) -> str:
    """Show decode rates by streams, and prefill."""
    rows = []
    for name in names(results):
        cells = [rate_of(results, name, column) for column in columns(results)]
        if any(cells):
            about = results["about"].get("contenders", {}).get(name, {})
            extra = [f"{about[key]:.{digits}f}" if key in about else "" for key, digits in _ABOUT]
            rows.append([name, *(str(cell) if cell else "" for cell in cells), *extra])
    return table(["tokens/s", *columns(results), "start, s", "peak, MB"], rows)


_ABOUT = (("start_s", 1), ("peak_memory_mb", 0))


def http_table(results: Results) -> str:
    """Show throughput and latencies of servers."""
    heads = [
        "server",
        "tokens/s",
        "of offline",
        "TTFT p50, ms",
        "p95",
        "p99",
        "ITL p50, ms",
        "p95",
        "p99",
        "start, s",
        "peak, MB",
    ]
    paths = [(kind, f"p{p}") for kind in ("ttft_ms", "itl_ms") for p in (50, 95, 99)] + [
        ("start_s",),
        ("peak_memory_mb",),
    ]
    rows = []
    for name in names(results):
        rate = http(results, name, "output_tokens_per_s")
        if rate is not None:
            alone = offline(results, name, str(results["about"]["clients"]), whole_rate)
            share = f"{100 * rate.median / alone.median:.0f} %" if alone else ""
            rows.append([name, str(rate), share, *(str(http(results, name, *path)) for path in paths)])
    return table(heads, rows)


def goal_table(results: Results) -> str:
    """Show each goal that was measured: ratio of medians, of the fastest of ours to the fastest of theirs."""
    rows = []
    for goal in GOALS:
        for column, times in goal.times.items():
            ours, theirs = (_fastest(results, names, column) for names in (goal.ours, goal.theirs))
            if ours and theirs:
                ratio = ours[1] / theirs[1]
                verdict = "met" if ratio >= times else f"missed by {100 * (1 - ratio / times):.0f} %"
                rows.append([goal.name, column, ours[0], theirs[0], f"{ratio:.2f}", f"{times:.2f}", verdict])
    return table(["goal", "column", "ours", "theirs", "ratio", "wanted", ""], rows)


def _fastest(results: Results, contenders: Sequence[str], column: str) -> tuple[str, float] | None:
    rates = {name: found.median for name in contenders if (found := rate_of(results, name, column))}
    return max(rates.items(), key=lambda item: item[1], default=None)


def quality_table(rows: Sequence[Results]) -> str:
    """Show agreements."""
    heads = ["same token, %", "as float32 of the source", "but for ties", "as float32 of its own file", "but for ties"]
    cells = [
        [
            row["contender"],
            *(f"{of[key]:.2f}" for of in (row, row["own_file"]) for key in ("percent", "percent_but_ties")),
        ]
        for row in rows
    ]
    return table(heads, cells)

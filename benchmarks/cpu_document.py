"""Put what `make bench-cpu` and `make bench-quality` measured into docs/benchmarks.md, and draw its plots.

    cpu_document.py CPU_JSON QUALITY_JSON

Needs matplotlib. Text between `<!-- NAME -->` and `<!-- end -->` is replaced; the rest of the page is written by hand.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from cpu_report import columns, goal_table, http, http_table, names, offline_table, quality_table, rate_of, table

PAGE = Path(__file__).parent.parent / "docs/benchmarks.md"
PANELS = (
    ("float32 and 16 bits", ("f32", "f16", "bf16")),
    ("4 and 8 bits", ("q4_1-fast", "q4_1", "q4_0", "q8_0")),
)
COLOURS = {"headrace": "#c0392b", "vllm": "#2c7fb8", "llama": "#31a354", "transformers": "#8c6bb1"}
STYLES = ("-", "--", ":", "-.")


def engine_of(name: str) -> str:
    """Return the engine of a contender such as llama-q4_0."""
    return name.split("-", 1)[0]


def draw_decoding(results: dict[str, Any], file: Path) -> None:
    """Draw decode rates over the number of streams."""
    from matplotlib import pyplot

    streams = [column for column in columns(results) if column.isdigit()]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, (title, formats) in zip(axes, PANELS, strict=True):
        drawn: dict[str, int] = {}
        for name in names(results):
            rates = [rate_of(results, name, column) for column in streams]
            if name.split("-", 1)[1] in formats and all(rates):
                engine = engine_of(name)
                style = STYLES[drawn.setdefault(engine, 0) % len(STYLES)]
                drawn[engine] += 1
                medians = [rate.median for rate in rates if rate]
                axis.plot(
                    [int(count) for count in streams], medians, style, color=COLOURS[engine], label=name, marker="."
                )
        axis.set(title=title, xlabel="streams", xscale="log", xticks=[int(count) for count in streams])
        axis.get_xaxis().set_major_formatter(mpl.ticker.ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set(ylabel="decoded tokens/s", ylim=(0, None))
    save(figure, file)


def draw_servers(results: dict[str, Any], file: Path) -> None:
    """Draw throughput and latencies through HTTP."""
    from matplotlib import pyplot

    served = [name for name in names(results) if http(results, name, "output_tokens_per_s")]
    shown = (("output_tokens_per_s",), ("ttft_ms", "p95"), ("itl_ms", "p95"))
    titles = ("tokens/s", "TTFT p95, ms", "ITL p95, ms")
    figure, axes = pyplot.subplots(1, 3, figsize=(10, 0.4 + 0.32 * len(served)), sharey=True)
    for axis, path, title in zip(axes, shown, titles, strict=True):
        values = [found.median if (found := http(results, name, *path)) else 0.0 for name in served]
        axis.barh(served, values, color=[COLOURS[engine_of(name)] for name in served])
        axis.set_title(title)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    save(figure, file)


def save(figure: Any, file: Path) -> None:
    """Write a figure the same way each time."""
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def machine(results: dict[str, Any]) -> str:
    """Say where and when it was measured, with which versions."""
    about = results["about"]
    versions = {engine_of(name): told["version"] for name, told in about.get("contenders", {}).items()}
    rounds = len({run["round"] for run in results["offline"]})
    rows = [
        ("date", about["date"]),
        ("CPU", f"{about['cpu']}, {about['cores']} cores"),
        ("memory", f"{about['memory_gb']} GB"),
        ("system", f"{about['system']}, Python {about['python']}"),
        ("commit", about["commit"]),
        *versions.items(),
        ("rounds", str(rounds)),
        ("load before", f"{about['load_before']:.1f}"),
    ]
    return table(["", ""], [list(row) for row in rows])


def main() -> None:
    """Rewrite the page."""
    results, quality = (json.loads(Path(file).read_text()) for file in sys.argv[1:])
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "headrace"
    folder = PAGE.parent / "images"
    folder.mkdir(exist_ok=True)
    draw_decoding(results, folder / "decoding.svg")
    draw_servers(results, folder / "servers.svg")
    parts = {
        "machine": machine(results),
        "offline": offline_table(results),
        "http": http_table(results),
        "goals": goal_table(results),
        "quality": quality_table(quality["agreement"]),
    }
    page = PAGE.read_text()
    for name, part in parts.items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, p=part: f"{found[1]}\n{p}\n\n{found[2]}",
            page,
            flags=re.S,
        )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()

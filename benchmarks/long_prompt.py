"""What a prompt of 50,000 tokens does to 16 streams beside it, with `step_ms`: `make bench-long-prompt`.

A tiny model with made-up weights and a long context. Prints inter-token latencies without and with the long prompt, and
what the prompt's tokens cost as it gets on: only attention may grow.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace import Engine, SamplingParams

NUM_STREAMS = 16
VOCAB = 512
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def engine(folder: Path, step_ms: float | None) -> Engine:
    """Make an engine whose pool holds the long prompt and the streams."""
    return Engine(
        folder,
        load_format="dummy",
        tokenizer="symbols",
        options={"tokenizer": {"vocab_size": VOCAB}},
        max_num_seqs=32,
        num_kv_blocks=8192,
        enable_prefix_caching=False,
        step_ms=step_ms,
    )


async def latencies(running: Engine, until: asyncio.Event) -> list[float]:
    """Return the seconds between tokens of 16 streams that go on until the event is set."""
    taken: list[float] = []

    async def read(number: int) -> None:
        while not until.is_set():
            params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
            last = None
            async for delta in running.stream([number + 1] * 32, params):
                now = time.perf_counter()
                if last is not None:
                    taken.extend([(now - last) / len(delta.token_ids)] * len(delta.token_ids))
                last = now
                if until.is_set():
                    break

    async with asyncio.TaskGroup() as group:
        for number in range(NUM_STREAMS):
            group.create_task(read(number))
    return taken


async def beside(running: Engine, seconds: float, prompt: list[int] | None) -> tuple[list[float], float]:
    """Return latencies of the streams beside a prompt, or for so long without one, and the prompt's own seconds."""
    until = asyncio.Event()
    streams = asyncio.create_task(latencies(running, until))
    await asyncio.sleep(min(2.0, seconds))
    start = time.perf_counter()
    if prompt is None:
        await asyncio.sleep(seconds)
    else:
        await running.generate(prompt, SamplingParams(max_tokens=1, temperature=0))
    taken = time.perf_counter() - start
    until.set()
    return await streams, taken


async def chunk_costs(running: Engine) -> list[dict[str, float]]:
    """Return what a token of the long prompt cost, alone, in each eighth of it."""
    trace = await running.trace()
    chunks = {span.step: span.num_tokens for span in trace if span.name == "schedule"}
    spans = [span for span in trace if span.name == "compute"]
    ends = np.cumsum([chunks[span.step] for span in spans])
    costs = []
    for eighth in range(8):
        low, high = ends[-1] * eighth / 8, ends[-1] * (eighth + 1) / 8
        part = [span for span, end in zip(spans, ends, strict=True) if low < end <= high]
        if not part:
            continue
        seconds, tokens = sum(span.end - span.start for span in part), sum(chunks[span.step] for span in part)
        costs.append({"position": (low + high) / 2, "us_per_token": seconds / tokens * 1e6})
    return costs


async def measure(num_tokens: int, seconds: float) -> dict[str, Any]:
    """Measure everything."""
    prompt = np.random.default_rng(0).integers(1, VOCAB, num_tokens).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        async with engine(folder, None) as running:
            alone, _ = await beside(running, seconds, None)
            frozen, without_goal_s = await beside(running, seconds, prompt)
        async with engine(folder, None) as running:
            await running.generate(prompt, SamplingParams(max_tokens=1, temperature=0))
            costs = await chunk_costs(running)
        step_ms = 1.5e3 * statistics.median(alone)
        async with engine(folder, step_ms) as running:
            again, _ = await beside(running, seconds, None)
            paced, with_goal_s = await beside(running, seconds, prompt)
    line = np.polyfit([cost["position"] for cost in costs], [cost["us_per_token"] for cost in costs], 1)
    return {
        "prompt_tokens": num_tokens,
        "step_ms": step_ms,
        "itl_ms_without_prompt": _percentiles(alone + again),
        "itl_ms_beside_prompt_without_step_ms": _percentiles(frozen),
        "itl_ms_beside_prompt_with_step_ms": _percentiles(paced),
        "p95_ratio": _percentiles(paced)["p95"] / _percentiles(alone + again)["p95"],
        "prompt_s": {"without step_ms": without_goal_s, "with step_ms": with_goal_s},
        "cost_by_position": costs,
        "cost_fit_us": {"base": float(line[1]), "per_1000_positions": float(line[0] * 1000)},
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(values, p)) * 1e3 for p in (50, 95, 99)}


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter prompt, to see that it works")
    parser.add_argument("--output", type=Path, default=Path("build/bench-long-prompt.json"))
    given = parser.parse_args()
    results = asyncio.run(measure(8000, 3.0) if given.quick else measure(50_000, 15.0))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(results, indent=2))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

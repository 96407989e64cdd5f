"""Full load for ten minutes: throughput and the memory of every process over time: `make bench-soak`."""

import argparse
import asyncio
import json
import os
import random
import re
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace import Engine, SamplingParams

MODEL = "smollm2-135m-instruct"
NUM_STREAMS = 32
WARM_UP_SHARE = 0.2
"""Of the time, before which nothing is compared."""


def resident_mb(pid: int) -> float:
    """Return the memory of a process."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


async def measure(minutes: float, sample_s: float) -> dict[str, Any]:
    """Keep 32 streams open, one request after the other, a tenth of them aborted; sample as time goes by."""
    samples: list[dict[str, Any]] = []
    counts = {"tokens": 0, "requests": 0}
    async with Engine(MODEL, runner="native", max_model_len=1024, max_num_seqs=NUM_STREAMS) as engine:
        pids = engine.pids() | {"frontend": os.getpid()}
        end = time.perf_counter() + 60 * minutes

        async def keep_busy(number: int) -> None:
            chance = random.Random(number)
            while time.perf_counter() < end:
                prompt = [chance.randrange(20, 49000) for _ in range(chance.randint(16, 200))]
                params = SamplingParams(max_tokens=chance.randint(8, 128), temperature=0, ignore_eos=True)
                leaves_after = chance.randint(1, 8) if chance.random() < 0.1 else None
                async with engine.stream(prompt, params) as stream:
                    async for num_deltas, delta in _numbered(stream):
                        counts["tokens"] += len(delta.token_ids)
                        if num_deltas == leaves_after:
                            break
                counts["requests"] += 1

        async def sample() -> None:
            while (left := end - time.perf_counter()) > 0:
                before, start = counts["tokens"], time.perf_counter()
                await asyncio.sleep(min(sample_s, left))
                rate = (counts["tokens"] - before) / (time.perf_counter() - start)
                memory = {role: resident_mb(pid) for role, pid in pids.items()}
                samples.append({"tokens_per_s": rate, "memory_mb": memory, "requests": counts["requests"]})

        async with asyncio.TaskGroup() as group:
            group.create_task(sample())
            for number in range(NUM_STREAMS):
                group.create_task(keep_busy(number))
        stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.kv.num_free == stats.kv.num_blocks
    return _summary(samples, minutes)


async def _numbered(stream: Any) -> Any:
    number = 0
    async for delta in stream:
        number += 1
        yield number, delta


def _summary(samples: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    steady = samples[int(WARM_UP_SHARE * len(samples)) :]
    half = len(steady) // 2
    halves = {"first_half": steady[:half], "second_half": steady[half:]}
    requests = max(steady[-1]["requests"] - steady[0]["requests"], 1)
    grown = {role: mb - steady[0]["memory_mb"][role] for role, mb in steady[-1]["memory_mb"].items()}
    return {
        "minutes": minutes,
        "requests": steady[-1]["requests"],
        "tokens_per_s": {name: fmean(s["tokens_per_s"] for s in part) for name, part in halves.items()},
        "memory_grown_bytes_per_request": {role: mb * 2**20 / requests for role, mb in grown.items()},
        "samples": samples,
    }


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--output", type=Path, default=Path("build/bench-soak.json"))
    given = parser.parse_args()
    results = asyncio.run(measure(given.minutes, min(20.0, 3 * given.minutes)))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(results, indent=2))
    print(json.dumps({name: value for name, value in results.items() if name != "samples"}, indent=2))


if __name__ == "__main__":
    main()

"""How well the engine keeps its device busy, and what it costs: `make bench-engine`.

All on runner `sim` or `kvhash`, so that the engine is measured and not a model. Prints a table and writes a JSON file.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from engine_server import busy_share_of_server
from engine_traffic import state_traffic

from headrace import Engine, SamplingParams
from headrace.core.channel import Inbox
from headrace.core.columns import pack_ints
from headrace.core.links import Inbound, Outbound
from headrace.core.messages import StepOutput, ToOutput


def simulated(step_s: float, num_rows: int, **options: Any) -> Engine:
    """Make a split engine on a device that takes `step_s` for any step."""
    runner = {"base_s": step_s, "per_token_s": 0, "per_row_s": 0, "per_context_token_s": 0, "vocab_size": 512}
    return Engine(
        runner="sim",
        tokenizer="symbols",
        options={"runner": runner, "tokenizer": {"vocab_size": 512}},
        max_model_len=4096,
        max_num_seqs=num_rows,
        num_kv_blocks=200 * num_rows,
        **options,
    )


async def busy_share(step_s: float, num_rows: int, num_tokens: int, *, is_async: bool) -> float:
    """Return the share of time that the device computes while all rows decode."""
    async with simulated(step_s, num_rows, async_scheduling=is_async) as engine:
        params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
        streams = [engine.stream([100 + row % 100], params) for row in range(num_rows)]
        await asyncio.gather(*(stream.result() for stream in streams))
        spans = [s for s in await engine.trace() if s.name == "compute" and s.num_rows == num_rows]
    computed = sum(span.end - span.start for span in spans)
    return computed / (spans[-1].end - spans[0].start)


async def output_link(num_rows: int, repeats: int) -> list[float]:
    """Return how long a step's output takes through a link: encode, send, thread, decode, loop; seconds each."""
    import tempfile

    import zmq

    context: zmq.Context[Any] = zmq.Context()
    inbox: Inbox[ToOutput] = Inbox()
    taken: list[float] = []
    came = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        inbound = Inbound(context, Path(folder) / "in", ToOutput, inbox.buffer.extend)
        outbound: Outbound[ToOutput] = Outbound(context, Path(folder) / "in")
        rows = np.arange(num_rows)
        output = StepOutput(rows=pack_ints(rows), num_new=pack_ints(np.ones_like(rows)), token_ids=pack_ints(rows))
        serving = asyncio.create_task(inbox.serve(lambda _messages: came.set()))
        for _ in range(repeats):
            came.clear()
            start = time.perf_counter()
            outbound.send(output)
            await came.wait()
            taken.append(time.perf_counter() - start)
        serving.cancel()
        outbound.close()
        inbound.close()
    context.destroy(linger=0)
    return taken


async def round_trips(concurrency: int, num_requests: int) -> tuple[list[float], float]:
    """Return latencies of one-token requests on a device that costs nothing, and requests per second."""
    params = SamplingParams(max_tokens=1, temperature=0)
    latencies: list[float] = []
    async with simulated(0.0, 64) as engine:

        async def ask(count: int) -> None:
            for _ in range(count):
                start = time.perf_counter()
                await engine.generate([100, 101, 102], params)
                latencies.append(time.perf_counter() - start)

        await asyncio.gather(*(ask(20) for _ in range(concurrency)))
        latencies.clear()
        start = time.perf_counter()
        await asyncio.gather(*(ask(num_requests // concurrency) for _ in range(concurrency)))
        return latencies, len(latencies) / (time.perf_counter() - start)


async def idle_cpu(seconds: float) -> dict[str, float]:
    """Return milliseconds of CPU that each process of an idle engine uses."""
    async with Engine(runner="kvhash", tokenizer="symbols", max_model_len=1024) as engine:
        await engine.generate([1], SamplingParams(max_tokens=5))
        await asyncio.sleep(1)
        pids = engine.pids() | {"frontend": os.getpid()}
        before = {role: _cpu_ms(pid) for role, pid in pids.items()}
        await asyncio.sleep(seconds)
        return {role: _cpu_ms(pid) - before[role] for role, pid in pids.items()}


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def measure(is_quick: bool) -> dict[str, Any]:
    """Measure everything; ratios and medians."""
    tokens = 200 if is_quick else 1500
    busy = {}
    for rows in (64, 256):
        for is_async in (True, False):
            name = f"{rows} rows, {'asynchronous' if is_async else 'synchronous'}"
            busy[name] = [await busy_share(0.002, rows, tokens, is_async=is_async) for _ in range(1 if is_quick else 3)]
    streams = [await busy_share_of_server(0.005, 64, 16, tokens // 2) for _ in range(1 if is_quick else 3)]
    links = await output_link(256, 200 if is_quick else 3000)
    at_8, _ = await round_trips(8, 400 if is_quick else 4000)
    at_64, per_second = await round_trips(64, 640 if is_quick else 12800)
    return {
        "busy_share_at_2ms": {name: statistics.median(shares) for name, shares in busy.items()},
        "busy_share_at_5ms_64_rows_and_16_http_streams": statistics.median(streams),
        "output_link_256_rows_us": _percentiles(links, 1e6),
        "round_trip_8_way_ms": _percentiles(at_8, 1e3),
        "round_trip_64_way_ms": _percentiles(at_64, 1e3),
        "requests_per_second_64_way": per_second,
        "runner_bytes_per_step": {f"{rows} rows": await state_traffic(rows) for rows in (64, 256)},
        "idle_cpu_ms_over_10_s": await idle_cpu(2 if is_quick else 10),
    }


def _percentiles(values: list[float], scale: float) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(values, p)) * scale for p in (50, 95, 99)}


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--output", type=Path, default=Path("build/bench-engine.json"))
    given = parser.parse_args()
    results = asyncio.run(measure(given.quick))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

"""How busy a device stays while `headrace serve` streams over HTTP: a part of `make bench-engine`."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp

HEADRACE = str(Path(sys.executable).with_name("headrace"))


async def busy_share_of_server(step_s: float, num_rows: int, num_streams: int, num_tokens: int) -> float:
    """Return the share of time that a simulated device computes for `num_rows` completions and streams beside them."""
    options = {"base_s": step_s, "per_token_s": 0.0, "per_row_s": 0.0, "per_context_token_s": 0.0, "vocab_size": 512}
    command = [HEADRACE, "serve", "--runner", "sim", "--tokenizer", "symbols", "--port", "0", "--max-model-len", "8192"]
    command += ["--max-num-seqs", str(num_rows + num_streams), "--num-kv-blocks", "60000"]
    command += ["--option", "tokenizer.vocab_size=512"]
    command += [part for name, value in options.items() for part in ("--option", f"runner.{name}={value}")]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", (await server.stdout.readline()).decode())
        assert found, "the server didn't start"
        async with aiohttp.ClientSession(found[0]) as session:
            beside = [_post(session, [100 + i, 101], num_tokens, is_stream=False) for i in range(num_rows)]
            streams = [_post(session, [200 + i, 101], num_tokens, is_stream=True) for i in range(num_streams)]
            await asyncio.gather(*beside, *streams)
            async with session.get("/trace") as answer:
                events = json.loads(await answer.read())["traceEvents"]
        return _share(events, num_rows + num_streams)
    finally:
        server.terminate()
        await server.wait()


async def _post(session: aiohttp.ClientSession, prompt: Sequence[int], num_tokens: int, is_stream: bool) -> None:
    body = {"prompt": list(prompt), "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": is_stream}
    async with session.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.content.iter_any():
            pass


def _share(events: Sequence[dict], num_rows: int) -> float:  # type: ignore[type-arg]
    steps = [e for e in events if e.get("name") == "compute" and e["args"].get("num_rows") == num_rows]
    first, last = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    return float(sum(e["dur"] for e in steps) / (last - first))

"""Memory of every process of a server, over thousands of requests of each end."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

WARM_UP, COUNT, WAYS = 1000, 3334, 32
SERVE = ["serve", "--runner", "kvhash", "--tokenizer", "symbols", "--port", "0", "--max-model-len", "120000"]


@pytest.fixture
def server():
    command = [str(Path(sys.executable).with_name("headrace")), *SERVE, "--num-kv-blocks", "8192"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.search(r"http://\S+", process.stdout.readline())[0], process.pid
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def resident_kb(root: int) -> dict[int, int]:
    """Return the memory of a process and its children."""
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    pids = [root, *map(int, children)]
    return {pid: int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) for pid in pids}


async def repeat(count, send):
    numbers = iter(range(count))

    async def send_one_by_one():
        for number in numbers:
            await send(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(WAYS):
            group.create_task(send_one_by_one())


@pytest.mark.verify
def test_J02_memory_is_flat_over_requests_that_end_refusals_and_disconnects(server):
    url, pid = server

    async def ends(number):
        async with session.post("/v1/completions", json={"prompt": f"Hello {number}", "max_tokens": 1}) as answer:
            assert (answer.status, bool(await answer.read())) == (200, True)

    async def refused(_number):
        async with session.post("/v1/completions", json={"prompt": ""}) as answer:
            assert (answer.status, bool(await answer.read())) == (400, True)

    async def leaves(number):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        body = json.dumps({"prompt": f"Hello {number}", "max_tokens": 100_000, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        if number % 2:
            await reader.read(1)
        writer.close()

    async def gauges():
        """Read what must come back to zero; requests of clients that left may still be on their way out."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        async with asyncio.timeout(60):
            while True:
                async with session.get("/metrics") as answer:
                    page = await answer.text()
                found = {name: float(re.search(rf"headrace:{name}{{[^}}]*}} (\S+)", page)[1]) for name in names}
                if not any(found.values()):
                    return found

    async def test():
        nonlocal session
        async with aiohttp.ClientSession(url) as session:
            for send in (ends, refused, leaves):
                await repeat(WARM_UP, send)
            before = resident_kb(pid)
            for send in (ends, refused, leaves):
                await repeat(COUNT, send)
            return before, resident_kb(pid), await gauges()

    session = None
    before, after, left = asyncio.run(test())
    assert set(before) == set(after)
    assert max(after[pid] - before[pid] for pid in before) < 3 * COUNT
    assert left == {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}

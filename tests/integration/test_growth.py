"""What grows with the number of requests served: nothing. Of the server, see tests/server/test_memory.py."""

import asyncio
import gc
import os
import re
from pathlib import Path

import pytest
from engines import script

from headrace import SamplingParams

WAYS = 32
PARAMS = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def resident_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


async def generate(engine, first, count, reads_stats):
    """Run requests of 34 tokens that share blocks with those of the same tenth."""
    numbers = iter(range(first, first + count))

    async def one_by_one():
        for number in numbers:
            prompt = [number % 10] * 32 + [number % 61, number % 59]
            assert len((await engine.generate(prompt, PARAMS)).token_ids) == 20
            if reads_stats and number % 10 == 0:
                await engine.stats()

    async with asyncio.TaskGroup() as group:
        for _ in range(WAYS):
            group.create_task(one_by_one())


def snapshot(pids):
    gc.collect()
    return len(gc.get_objects()), {name: resident_bytes(pid) for name, pid in pids.items()}


def check_growth(warm_up, count, *, reads_stats, **options):
    async def test():
        async with script([5, 6, 7], vocab_size=1024, **options) as engine:
            pids = {**engine.pids(), "frontend": os.getpid()}
            await generate(engine, 0, warm_up, reads_stats)
            objects, before = snapshot(pids)
            await generate(engine, warm_up, count, reads_stats)
            later, after = snapshot(pids)
        assert later - objects < 100
        return {name: (after[name] - before[name]) / count for name in pids}

    return asyncio.run(test())


def test_J01_objects_do_not_grow_with_requests():
    check_growth(200, 400, reads_stats=True, processes="inline")


@pytest.mark.verify
@pytest.mark.parametrize(
    ("processes", "reads_stats", "caches"),
    [("inline", True, True), ("inline", False, False), ("split", False, True), ("split", True, False)],
)
def test_J01_memory_is_flat_over_fifty_thousand_requests(processes, reads_stats, caches):
    options = {"processes": processes, "enable_prefix_caching": caches}
    grown = check_growth(20_000, 30_000, reads_stats=reads_stats, **options)
    assert max(grown.values()) < 1024, grown

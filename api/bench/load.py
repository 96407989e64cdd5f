"""When requests are sent: at a rate, whatever the server does, or so many at once."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

from headrace.bench.client import Client, Record

Measured = Callable[[], None]
"""Called after each request."""


async def at_rate(client: Client, prompts: Sequence[str], rate: float, seed: int, measured: Measured) -> list[Record]:
    """Send `rate` requests a second on average, at random times (Poisson)."""
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def send(prompt: str, due: float) -> Record:
        await asyncio.sleep(start + due - loop.time())
        record = await client.measure(prompt)
        measured()
        return record

    async with asyncio.TaskGroup() as group:
        times = arrivals(len(prompts), rate, seed)
        tasks = [group.create_task(send(prompt, due)) for prompt, due in zip(prompts, times, strict=True)]
    return [task.result() for task in tasks]


async def at_concurrency(client: Client, prompts: Sequence[str], concurrency: int, measured: Measured) -> list[Record]:
    """Keep `concurrency` requests open: the next one is sent when one ends."""
    waiting = iter(prompts)
    records: list[Record] = []

    async def send_one_by_one() -> None:
        for prompt in waiting:
            records.append(await client.measure(prompt))
            measured()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(prompts))):
            group.create_task(send_one_by_one())
    return records


def arrivals(number: int, rate: float, seed: int) -> Iterator[float]:
    """Yield the seconds after the start at which requests are due; the first at once."""
    draw = random.Random(seed)
    due = 0.0
    for _ in range(number):
        yield due
        due += draw.expovariate(rate)

"""Engines without a model for the engine suite, and the hang guard that all of its tests run under."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from headrace import Engine

HANG_GUARD_S = 60
placement = {"processes": "inline"}
"""Engine options of every engine made here; the engine suite changes them."""


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous test on a loop of its own."""

    async def guarded() -> None:
        async with asyncio.timeout(HANG_GUARD_S):
            await test()

    asyncio.run(guarded())


def kvhash(**overrides: Any) -> Engine:
    """Make an engine whose output is exact: a hash of what it reads through the block table."""
    options = {"tokenizer": {"vocab_size": 512}, **overrides.pop("options", {})}
    given = {"max_model_len": 1024, "num_kv_blocks": 256, **placement, **overrides}
    return Engine(runner="kvhash", tokenizer="symbols", options=options, **given)


def script(tokens: list[Any], faults: list[dict[str, Any]] = [], model: Any = None, **overrides: Any) -> Engine:  # noqa: B006
    """Make an engine that emits these tokens, through the tokenizer of `model` if there is one."""
    given = {"max_model_len": 1024, "num_kv_blocks": 256, **placement, **overrides}
    vocab_size = given.pop("vocab_size", 49152 if model else 2048)
    runner = {"tokens": tokens, "faults": faults, "vocab_size": vocab_size}
    tokenizer = {"tokenizer": "huggingface"} if model else {"tokenizer": "symbols"}
    symbols = {} if model else {"tokenizer": {"vocab_size": vocab_size, "eos_ids": given.pop("eos_ids", [])}}
    return Engine(model, runner="script", options={"runner": runner, **symbols}, **tokenizer, **given)


@contextlib.asynccontextmanager
async def idle_after(engine: Engine) -> Any:
    """Start an engine, and check at the end that nothing is left of any request."""
    async with engine:
        yield engine
        await check_idle(engine)


async def check_idle(engine: Engine) -> None:
    """Check that frontend, core and pool hold nothing; ends that are on their way are waited for."""
    async with asyncio.timeout(5):
        while True:
            stats = await engine.stats()
            is_idle = stats.num_running == stats.num_waiting == 0 and stats.kv.num_free == stats.kv.num_blocks
            if is_idle and engine.num_open() == 0:
                return
            await asyncio.sleep(0)

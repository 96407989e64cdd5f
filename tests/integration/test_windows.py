"""Sliding windows through whole engines: the tokens are the same with prefix cache and preemption on and off."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, context_of, run_chunks, take
from engines import check_idle, idle_after, kvhash, run
from msgspec.structs import replace
from tiny_families import WINDOW as TINY_WINDOW
from tiny_families import tiny
from tiny_llama import save_folder

from headrace import Engine, SamplingParams
from headrace.runners.kvhash import reference
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions
from headrace.runners.torch_cpu.model import TorchModel

WINDOW = 32
GREEDY = SamplingParams(temperature=0, max_tokens=40)
PROMPTS = [[*range(shared), *range(500 - own, 500)] for shared in (0, 50, 100) for own in (3, 20, 70)]
ROOMY, SCARCE = {"num_kv_blocks": 512}, {"num_kv_blocks": 28, "max_num_batched_tokens": 48}


def windowed(*windows: int, **overrides: Any) -> Engine:
    """Make an exact engine whose groups have these windows."""
    return kvhash(options={"runner": {"num_groups": len(windows), "windows": windows}}, **overrides)


@pytest.mark.parametrize("scheduler", ["plain", "table"])
@pytest.mark.parametrize("windows", [(WINDOW,), (0, WINDOW)], ids=str)
@pytest.mark.parametrize("pool", [ROOMY, SCARCE], ids=["roomy", "scarce"])
@pytest.mark.parametrize("caching", [True, False])
def test_a_window_gives_the_same_tokens_with_prefix_cache_and_preemption_on_and_off(
    caching: bool, pool: dict[str, Any], windows: tuple[int, ...], scheduler: str
) -> None:
    async def test() -> None:
        engine = windowed(*windows, scheduler=scheduler, enable_prefix_caching=caching, block_size=8, **pool)
        async with idle_after(engine):
            for _ in range(2):
                results = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in PROMPTS))
                for prompt, result in zip(PROMPTS, results, strict=True):
                    assert result.token_ids == reference(prompt, 40, num_groups=len(windows), windows=windows)
            stats = await engine.stats()
            assert (stats.preemptions > 0) == (pool is SCARCE)
            assert (stats.kv.hits > 0) == caching

    run(test)


@pytest.mark.parametrize("windows", [(WINDOW,), (0, WINDOW)], ids=str)
def test_C12_repeats_of_a_prompt_give_equal_outputs_and_all_blocks_come_back(windows: tuple[int, ...]) -> None:
    prompt = list(range(100))

    async def test() -> None:
        async with idle_after(windowed(*windows, num_kv_blocks=64)) as engine:
            results = [await engine.generate(prompt, GREEDY) for _ in range(4)]
            expected = reference(prompt, 40, num_groups=len(windows), windows=windows)
            assert [result.token_ids for result in results] == [expected] * 4
            assert [result.usage.cached_tokens for result in results] == [0, 96, 96, 96]

    run(test)


def test_a_request_longer_than_the_pool_runs_in_a_window() -> None:
    async def test() -> None:
        async with idle_after(windowed(WINDOW, num_kv_blocks=8, max_prefill_chunk=32)) as engine:
            prompt = [token % 300 for token in range(400)]
            params = SamplingParams(temperature=0, max_tokens=200)
            result = await engine.generate(prompt, params)
            assert result.token_ids == reference(prompt, 200, windows=(WINDOW,))

    run(test)


@pytest.fixture(scope="module")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3: windows of 24 tokens, and two layers that see everything."""
    return save_folder(tiny("gemma3"), tmp_path_factory.mktemp("gemma3") / "model")


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_gemma_over_several_windows_is_the_same_preempted_and_cached(runner: str, gemma_folder: Path) -> None:
    chance = np.random.default_rng(3)
    shared = chance.integers(0, 256, 90).tolist()
    prompts = [shared[:length] + chance.integers(0, 256, 20).tolist() for length in (90, 90, 70, 45)]

    async def answers(num_at_once: int, **config: Any) -> list[list[int]]:
        given = {"processes": "inline", "threads": 1, "deterministic": runner == "torch", "block_size": 8, **config}
        options = {"tokenizer": {"vocab_size": 256}}
        engine = Engine(str(gemma_folder), runner=runner, tokenizer="symbols", options=options, **given)
        found = []
        async with engine:
            for start in range(0, 2 * len(prompts), num_at_once):
                some = (prompts + prompts)[start : start + num_at_once]
                found += await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in some))
            stats = await engine.stats()
            await check_idle(engine)
        assert (stats.preemptions > 0) == ("num_kv_blocks" in config)
        assert (stats.kv.hits > 0) == config.get("enable_prefix_caching", True)
        return [result.token_ids for result in found]

    async def test() -> None:
        alone = await answers(1, enable_prefix_caching=False)
        assert await answers(4, num_kv_blocks=38, max_num_batched_tokens=40) == alone

    run(test)


@pytest.mark.parametrize("chunk", [1, 13])
@pytest.mark.parametrize("runner", ["torch", "torch-deterministic", "native"])
def test_what_lies_outside_a_window_is_never_read(runner: str, chunk: int, gemma_folder: Path) -> None:
    context = context_of(gemma_folder, deterministic=runner == "torch-deterministic")
    model = NativeModel(context, NativeOptions()) if runner == "native" else TorchModel(context)
    assert [group.window for group in model.load().groups] == [None, TINY_WINDOW]
    prompt, blocks = np.random.default_rng(4).integers(0, 256, 90).tolist(), Blocks(64)
    expected = run_chunks(model, blocks.row(prompt), chunk)
    other = blocks.row([255] * 96)
    run_chunks(model, other, 96)
    row, found = blocks.row(prompt), []
    for start in range(0, len(prompt), chunk):
        batch = take([(row, min(chunk, len(prompt) - start))])
        unseen = batch.tables[1].copy()
        end = max(0, start - TINY_WINDOW + 1) // 16
        unseen[0, :end] = other.table[:end] if start % 2 else 0
        model.forward(replace(batch, tables=[batch.tables[0], unseen]))
        found.append(model.logits(np.arange(len(batch.token_ids), dtype=np.int32)).copy())
    np.testing.assert_array_equal(np.concatenate(found), expected)
    model.close()

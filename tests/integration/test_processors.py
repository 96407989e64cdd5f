"""Logits processors of an installed plugin in whole engines."""

import asyncio
import json
import os
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engines import idle_after, kvhash, run
from packages import make_package

from headrace import LLM, SamplingParams
from headrace.core.errors import InvalidParameter, RequestFailed
from headrace.runners.kvhash import next_logits

SOURCE = '''
import msgspec
from headrace.core.providers import Provider

class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    divisor: int = 2
    fails_at: int | None = None

class Alternate:
    """Rules out ids that leave the same remainder as the last one: what it does depends on every token so far."""

    def __init__(self, vocab_size, options):
        assert options.divisor < vocab_size, "divisor is too large"
        self.divisor, self.fails_at = options.divisor, options.fails_at

    def __call__(self, token_ids, num_prompt, logits):
        if len(token_ids) - num_prompt == self.fails_at:
            raise ValueError("as told")
        logits[token_ids[-1] % self.divisor :: self.divisor] = float("-inf")

def headrace_logits_processors():
    return [Provider("alternate", lambda context, options: Alternate(context.vocab_size, options), Options)]
'''


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin for this process and those that it starts."""
    site = make_package(tmp_path / "site", "alternate", SOURCE)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))


def alternating(max_tokens: int, **arguments: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, logits_processors={"alternate": arguments})


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(max_tokens):
        logits = next_logits(token_ids)
        logits[token_ids[-1] % 2 :: 2] = -np.inf
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt) :]


TINY = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
PROMPTS = [[i, 7, *range(i)] for i in range(1, 13)]


@pytest.mark.parametrize(
    "options",
    [
        {"async_scheduling": True},
        {"async_scheduling": False},
        {"num_kv_blocks": 6, "max_num_batched_tokens": 16},
        {"num_kv_blocks": 6, "enable_prefix_caching": False},
        {"scheduler": "table", "num_kv_blocks": 6},
        {"num_speculative_tokens": 3},
        {"processes": "split"},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_tokens_are_those_of_the_request_alone(options: dict[str, object]) -> None:
    async def test() -> None:
        async with idle_after(kvhash(**options)) as engine:
            plain = SamplingParams(temperature=0, max_tokens=20)
            mates = [asyncio.ensure_future(engine.generate(prompt, plain)) for prompt in PROMPTS[::3]]
            results = await asyncio.gather(*(engine.generate(prompt, alternating(20)) for prompt in PROMPTS))
            await asyncio.gather(*mates)
            assert [result.token_ids for result in results] == [expected(prompt, 20) for prompt in PROMPTS]
            if options.get("num_kv_blocks") == 6:
                assert (await engine.stats()).preemptions > 0

    run(test)


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_runners_with_a_model_apply_them(runner: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    options = {"load_format": "dummy", "tokenizer": "symbols", "num_kv_blocks": 32, "threads": 1}
    params = [alternating(12), SamplingParams(temperature=0, max_tokens=12)]
    params += [msgspec.structs.replace(params[0], temperature=1.0, seed=seed) for seed in range(4)]
    with LLM(tmp_path, runner=runner, **options) as llm:
        results = llm.generate([[4, 7]] * len(params), params, use_tqdm=False)
    changes = [all(left % 2 != right % 2 for left, right in pairwise([7, *result.token_ids])) for result in results]
    assert changes == [True, False, True, True, True, True]


def test_one_that_raises_ends_its_own_request_naming_plugin_and_reason() -> None:
    async def test() -> None:
        async with idle_after(kvhash()) as engine:
            sound = asyncio.ensure_future(engine.generate([3, 4], alternating(20)))
            with pytest.raises(RequestFailed) as caught:
                await engine.generate([1, 2], alternating(20, fails_at=5))
            assert "plugin 'alternate' (package headrace-alternate 1.0)" in str(caught.value)
            assert "raised ValueError: as told" in str(caught.value)
            assert (await sound).token_ids == expected([3, 4], 20)

    run(test)


def test_one_that_can_not_be_built_ends_its_own_request() -> None:
    async def test() -> None:
        async with idle_after(kvhash()) as engine:
            with pytest.raises(RequestFailed, match=r"alternate 1.0.*AssertionError: divisor is too large"):
                await engine.generate([1, 2], alternating(20, divisor=600))

    run(test)


@pytest.mark.parametrize("placed", ["inline", "split"])
def test_wrong_names_and_arguments_are_refused_with_the_field(placed: str) -> None:
    async def test() -> None:
        async with idle_after(kvhash(processes=placed)) as engine:
            for processors, message in (
                (
                    {"alternte": {}},
                    "logits_processors names 'alternte', which no plugin provides; did you mean 'alternate'?",
                ),
                ({"alternate": {"divisor": "x"}}, "logits_processors.alternate.divisor is 'x': expected `int`"),
                ({"alternate": {"div": 2}}, "logits_processors.alternate.div is unknown; did you mean 'divisor'?"),
            ):
                with pytest.raises(InvalidParameter) as caught:
                    await engine.generate([1], SamplingParams(logits_processors=processors))
                assert str(caught.value).startswith(message)
                assert caught.value.field == "logits_processors"

    run(test)

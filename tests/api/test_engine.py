"""Calls of an engine that are no requests: text, pings, its end."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from engines import idle_after, kvhash, run

from headrace import Engine, SamplingParams
from headrace.core.config import EngineConfig
from headrace.core.errors import (
    ConfigError,
    EngineClosed,
    InvalidParameter,
    InvalidPrompt,
    ModelNotFound,
    PluginError,
    RequestFailed,
)
from headrace.core.prompts import ChatPrompt, TextPrompt, TokenPrompt
from headrace.core.providers import RunnerContext
from headrace.runners.kvhash import KVHashOptions, build
from headrace.schedulers.policies.fcfs import FCFS


def test_tokenize_and_detokenize_are_each_others_reverse():
    async def test():
        async with idle_after(kvhash()) as engine:
            tokenized = await engine.tokenize(TextPrompt("Hey"), with_texts=True)
            assert (tokenized.token_ids, tokenized.texts) == ([40, 69, 89], ["H", "e", "y"])
            assert await engine.detokenize(tokenized.token_ids) == "Hey"
            assert (await engine.tokenize(TokenPrompt((1, 2)))).token_ids == [1, 2]
            chat = ChatPrompt(({"role": "user", "content": "Hey"},))
            assert (await engine.tokenize(chat)).token_ids == [40, 69, 89]

    run(test)


def test_what_is_no_text_is_refused():
    async def test():
        async with idle_after(kvhash()) as engine:
            with pytest.raises(InvalidPrompt):
                await engine.tokenize(TextPrompt(""))
            with pytest.raises(InvalidPrompt, match="symbols"):
                await engine.tokenize(TextPrompt("😀"))
            with pytest.raises(InvalidParameter, match="512"):
                await engine.detokenize([512])

    run(test)


def test_a_ping_of_an_idle_engine_tells_no_age():
    async def test():
        async with idle_after(kvhash()) as engine:
            await engine.generate("Hello")
            pong = await engine.ping()
            assert (pong.ready_age_s, pong.step_age_s) == (0, 0)

    run(test)


def test_the_end_of_an_engine_can_be_waited_for():
    async def test():
        async with kvhash() as engine:
            pass
        assert isinstance(await engine.wait_closed(), EngineClosed)
        with pytest.raises(EngineClosed):
            await engine.ping()

    run(test)


def test_what_a_models_makers_recommend_can_be_asked_for(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 20}')

    async def test():
        async with Engine(
            tmp_path, runner="kvhash", tokenizer="symbols", processes="inline", max_model_len=64
        ) as engine:
            assert await engine.recommended_params() == SamplingParams(temperature=0.5, top_k=20)
        async with kvhash() as engine:
            with pytest.raises(ModelNotFound, match="no model yet"):
                await engine.recommended_params()

    run(test)


class CountingRunner:
    """A runner that tells whether it is loaded or closed."""

    def __init__(self, gate=None):
        self.inner = build(RunnerContext(EngineConfig(max_model_len=64), None, 8, time.monotonic), KVHashOptions())
        self.gate = gate
        self.is_loading = threading.Event()
        self.num_closed = 0

    def load(self):
        self.is_loading.set()
        assert self.gate is None or self.gate.wait(60)
        return self.inner.load()

    def submit(self, step, wake):
        return self.inner.submit(step, wake)

    def close(self):
        self.num_closed += 1
        self.inner.close()


def test_a_start_that_fails_leaves_nothing_and_can_be_tried_again(monkeypatch):
    def fail(_block_size):
        raise ZeroDivisionError("in the hasher")

    async def test():
        runner = CountingRunner()
        engine = Engine(runner=runner, tokenizer="symbols", max_model_len=64)
        with monkeypatch.context() as patch:
            patch.setattr("headrace.kv.prefix.block_hasher", fail)
            with pytest.raises(PluginError, match="in the hasher"):
                await engine.start()
        assert runner.num_closed == 1
        with pytest.raises(EngineClosed, match="not started"):
            engine.stream([1])
        with pytest.raises(EngineClosed, match="runner was closed"):
            await engine.start()
        await engine.close()

    run(test)


def test_an_engine_is_started_once_whoever_asks():
    async def test():
        engine = kvhash()
        assert await asyncio.gather(engine.start(), engine.start(), engine.start()) == [engine] * 3
        assert len((await engine.generate([1])).token_ids) == 16
        await engine.close()

    run(test)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_start_that_is_given_up_releases_the_runner(how):
    async def test():
        runner = CountingRunner(gate=threading.Event())
        engine = Engine(runner=runner, tokenizer="symbols", max_model_len=64)
        starting = asyncio.create_task(engine.start())
        await asyncio.to_thread(runner.is_loading.wait)
        if how == "close":
            await engine.close()
        else:
            starting.cancel()
        with pytest.raises(EngineClosed if how == "close" else asyncio.CancelledError):
            await starting
        runner.gate.set()
        assert runner.num_closed == 1

    run(test)


def test_an_engine_closed_before_its_start_does_not_load():
    async def test():
        engine = kvhash()
        await engine.close()
        with pytest.raises(EngineClosed, match="the engine was closed"):
            await engine.start()
        assert engine._placement is None

    run(test)


def test_an_object_that_counts_as_false_is_used_all_the_same():
    class Empty(FCFS):
        """As empty as its queue."""

        num_added = 0

        def __len__(self):
            return len(self._waiting)

        def add(self, request):
            self.num_added += 1
            super().add(request)

    async def test():
        policy = Empty()
        async with kvhash(policy=policy) as engine:
            await engine.generate([1])
        assert policy.num_added == 1

    run(test)


def test_no_object_is_no_choice():
    with pytest.raises(ConfigError, match=r"use\.policy is None"):
        kvhash(policy=None)


def test_the_result_of_a_stream_that_was_read_or_closed_is_a_clear_error():
    async def test():
        async with idle_after(kvhash()) as engine:
            stream = engine.stream([1])
            await stream.result()
            with pytest.raises(RequestFailed, match="nothing is left"):
                await stream.result()
            closed = engine.stream([1])
            await closed.aclose()
            with pytest.raises(RequestFailed, match="nothing is left"):
                await closed.result()

    run(test)

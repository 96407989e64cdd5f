"""Calls of an engine that are no requests: text, pings, its end."""

from pathlib import Path

import pytest
from engines import idle_after, kvhash, run

from headrace import Engine, SamplingParams
from headrace.core.errors import EngineClosed, InvalidParameter, InvalidPrompt, ModelNotFound
from headrace.core.messages import ChatPrompt, TextPrompt, TokenPrompt


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

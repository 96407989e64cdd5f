"""Several streams read as one."""

import pytest
from engines import idle_after, kvhash, run

from headrace import SamplingParams
from headrace.ask import ask_prompt
from headrace.core.errors import InvalidPrompt
from headrace.runners.kvhash import reference
from headrace.stream import Streams


def submit(engine, prompts, **params):
    return Streams(engine.submit([ask_prompt(prompt, SamplingParams(temperature=0, **params)) for prompt in prompts]))


def test_chunks_come_with_the_place_of_their_prompt():
    async def test():
        async with idle_after(kvhash()) as engine:
            prompts = [[1], [2, 3], [4, 5, 6]]
            got = {place: [] for place in range(3)}
            ends = []
            async for ready in submit(engine, prompts, max_tokens=9):
                for place, chunk in ready:
                    got[place] += chunk.token_ids
                    ends += [place] if chunk.finish_reason else []
            assert list(got.values()) == [reference(prompt, 9) for prompt in prompts]
            assert sorted(ends) == [0, 1, 2]

    run(test)


def test_the_error_of_the_request_at_fault_is_raised_not_that_of_its_mates():
    async def test():
        async with idle_after(kvhash()) as engine:
            streams = submit(engine, [[1], [512], [2]])
            with pytest.raises(InvalidPrompt, match="512"):
                await anext(streams)

    run(test)


def test_closing_ends_all_requests_and_the_iteration():
    async def test():
        async with idle_after(kvhash()) as engine:
            streams = submit(engine, [[1], [2]], max_tokens=900)
            await anext(streams)
            await streams.aclose()
            assert [ready async for ready in streams] == []

    run(test)


def test_aborting_goes_on_to_the_last_chunks():
    async def test():
        async with idle_after(kvhash()) as engine:
            streams = submit(engine, [[1], [2]], max_tokens=900)
            await anext(streams)
            await streams.abort()
            reasons = [chunk.finish_reason async for ready in streams for _, chunk in ready if chunk.finish_reason]
            assert reasons == ["abort", "abort"]

    run(test)

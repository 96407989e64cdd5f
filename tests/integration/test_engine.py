"""The engine suite: whole engines through their Python API, on runners without a model."""

import asyncio
import gc

import pytest
from engines import check_idle, idle_after, kvhash, placement, run, script

from headrace import SamplingParams
from headrace.core.errors import (
    BusyError,
    ConfigError,
    DeadlineExceeded,
    EngineClosed,
    HeadraceError,
    InvalidParameter,
    InvalidPrompt,
    PromptTooLong,
    QueueFull,
    RequestFailed,
)
from headrace.core.text.symbols import FIRST
from headrace.core.trace import chrome_trace
from headrace.runners.kvhash import reference

GREEDY = SamplingParams(temperature=0, max_tokens=20)


def pytest_generate_tests(metafunc):
    """Every test runs inline and split; split, those of the subset in CI and the others in verify."""
    is_subset = metafunc.definition.get_closest_marker("subset") is not None
    split = pytest.param("split", marks=() if is_subset else pytest.mark.verify)
    metafunc.parametrize("placed", ["inline", split], indirect=True)


@pytest.fixture(autouse=True)
def placed(request, monkeypatch):
    monkeypatch.setitem(placement, "processes", request.param)


def text_of(token_ids):
    return "".join(chr(FIRST + token_id) for token_id in token_ids)


def ids_of(chunks):
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


@pytest.mark.subset
@pytest.mark.parametrize("is_async", [True, False])
def test_a_result_carries_text_ids_reason_usage_and_timings(is_async):
    async def test():
        async with idle_after(kvhash(async_scheduling=is_async)) as engine:
            result = await engine.generate([1, 2, 3], GREEDY)
            assert result.token_ids == reference([1, 2, 3], 20)
            assert result.text == text_of(result.token_ids)
            assert (result.finish_reason, result.stop_reason) == ("length", None)
            assert (result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens) == (
                3,
                20,
                0,
            )
            assert 0 <= result.timings.queued_s <= result.timings.ttft_s <= result.timings.total_s

    run(test)


@pytest.mark.subset
def test_streamed_equals_not_streamed_for_many_at_once():
    async def test():
        async with idle_after(kvhash(num_kv_blocks=24, max_num_batched_tokens=48)) as engine:

            async def stream(prompt):
                chunks = [chunk async for chunk in engine.stream(prompt, GREEDY)]
                assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
                assert chunks[-1].usage.completion_tokens == 20
                return "".join(chunk.text for chunk in chunks), ids_of(chunks)

            prompts = [[i, *range(i % 40)] for i in range(1, 40)]
            streamed = await asyncio.gather(*(stream(prompt) for prompt in prompts))
            whole = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in prompts))
            assert streamed == [(result.text, result.token_ids) for result in whole]
            assert [ids for _, ids in streamed] == [reference(prompt, 20) for prompt in prompts]

    run(test)


@pytest.mark.subset
def test_a_slow_reader_gets_merged_chunks_and_loses_nothing():
    async def test():
        async with idle_after(kvhash()) as engine:
            stream = engine.stream([5], greedy(200))
            await engine.generate([6], greedy(300))
            chunks = [chunk async for chunk in stream]
            assert len(chunks) == 1
            assert chunks[0].token_ids == reference([5], 200)

    run(test)


@pytest.mark.subset
def test_B14_n_far_above_the_rows_gives_each_choice_once():
    async def test():
        async with idle_after(kvhash(max_num_seqs=4, num_kv_blocks=12)) as engine:
            params = SamplingParams(n=20, max_tokens=4, temperature=1, seed=7)
            result = await engine.generate([1, 2, 3], params)
            assert [completion.index for completion in result.completions] == list(range(20))
            assert len({tuple(completion.token_ids) for completion in result.completions}) > 10
            assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 80)
            again = await engine.generate([1, 2, 3], params)
            assert [c.token_ids for c in again.completions] == [c.token_ids for c in result.completions]

    run(test)


@pytest.mark.subset
def test_D01_a_seed_decides_alone_whoever_is_in_the_batch():
    async def test():
        async with idle_after(kvhash(num_kv_blocks=12, block_size=8)) as engine:
            params = SamplingParams(temperature=0.8, seed=42, max_tokens=16)
            alone = (await engine.generate([9, 9], params)).token_ids
            for mates in range(1, 6):
                others = [engine.stream([i] * 10, SamplingParams(max_tokens=5 + i)) for i in range(mates)]
                results = await asyncio.gather(engine.generate([9, 9], params), *(other.result() for other in others))
                assert results[0].token_ids == alone

    run(test)


def test_an_engine_seed_makes_unseeded_requests_repeatable():
    async def test():
        runs = []
        for seed in (1, 1, 2):
            async with idle_after(kvhash(seed=seed)) as engine:
                runs.append((await engine.generate([1], SamplingParams(max_tokens=12))).token_ids)
        assert runs[0] == runs[1] != runs[2]

    run(test)


@pytest.mark.subset
def test_F08_streams_dropped_early_abort_their_requests():
    async def test():
        async with idle_after(kvhash(max_model_len=120_000, num_kv_blocks=8192)) as engine:
            for _ in range(300):
                count = 0
                async for _chunk in engine.stream([1, 2], greedy(100_000)):
                    count += 1
                    if count == 2:
                        break
            gc.collect()
            await check_idle(engine)
            assert (await engine.stats()).finished["abort"] == 300
            assert (await engine.generate([1, 2], GREEDY)).token_ids == reference([1, 2], 20)

    run(test)


@pytest.mark.subset
def test_cancelling_a_generate_aborts_its_request():
    async def test():
        async with idle_after(kvhash()) as engine:
            for turns in range(30):
                task = asyncio.create_task(engine.generate([turns], greedy(900)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await check_idle(engine)

    run(test)


@pytest.mark.subset
def test_an_aborted_stream_ends_with_what_it_had():
    async def test():
        async with idle_after(kvhash()) as engine:
            stream = engine.stream([3], greedy(900))
            chunks = [await anext(stream)]
            await stream.abort()
            await stream.abort()
            chunks += [chunk async for chunk in stream]
            ids = ids_of(chunks)
            assert ids == reference([3], 900)[: len(ids)]
            assert chunks[-1].finish_reason == "abort"
            assert len(ids) < 900
            await stream.aclose()
            await stream.aclose()

    run(test)


@pytest.mark.subset
def test_a_deadline_ends_a_request_with_its_own_error():
    async def test():
        async with idle_after(kvhash(max_model_len=100_000, num_kv_blocks=7000)) as engine:
            with pytest.raises(DeadlineExceeded, match=r"deadline_s was 0.05"):
                await engine.generate([1], greedy(90_000), deadline_s=0.05)
            assert (await engine.generate([1], GREEDY, deadline_s=50)).finish_reason == "length"

    run(test)


@pytest.mark.parametrize(
    ("prompt", "params", "options", "error", "message"),
    [
        ([], {}, {}, InvalidPrompt, "prompt is empty"),
        ("", {}, {}, InvalidPrompt, "prompt is empty"),
        ([512], {}, {}, InvalidPrompt, "token id 512, ids are 0 to 511"),
        ([-1], {}, {}, InvalidPrompt, "token id -1"),
        ([2**40], {}, {}, InvalidPrompt, "token id 1099511627776"),
        (["abc"], {}, {}, InvalidPrompt, "token id 'abc'"),
        ([True], {}, {}, InvalidPrompt, "token id True"),
        ([1.5], {}, {}, InvalidPrompt, "token id 1.5"),
        (5, {}, {}, InvalidPrompt, "prompt is a int"),
        (None, {}, {}, InvalidPrompt, "prompt is a NoneType"),
        ([1] * 1024, {}, {}, PromptTooLong, "prompt has 1024 tokens, limit is 1023"),
        ([1] * 1000, {"max_tokens": 25}, {}, PromptTooLong, "1000 tokens and max_tokens is 25, 1025 in all"),
        ([1], {"stop_token_ids": [512]}, {}, InvalidParameter, "stop_token_ids has the token id 512"),
        ([1], {"allowed_token_ids": [99999999]}, {}, InvalidParameter, "allowed_token_ids has the token id 99999999"),
        ([1], {"logit_bias": {2**40: 1.0}}, {}, InvalidParameter, "logit_bias has the token id"),
        ([1], {}, {"priority": "high"}, InvalidParameter, "priority is 'high'"),
        ([1], {}, {"deadline_s": -1}, InvalidParameter, "deadline_s is -1"),
        ([1], {}, {"deadline_s": float("nan")}, InvalidParameter, "deadline_s is nan"),
        ([1], {}, {"cache_salt": 5}, InvalidParameter, "cache_salt is 5"),
        ([1], {}, {"policy_args": {"x": 1}}, InvalidParameter, "policy_args.*x"),
        ("a\nb", {}, {}, InvalidPrompt, r"prompt has '\\n'"),
    ],
)
def test_D05_bad_input_is_a_typed_error_and_the_engine_lives_on(prompt, params, options, error, message):
    async def test():
        async with idle_after(kvhash()) as engine:
            with pytest.raises(error, match=message) as caught:
                await engine.generate(prompt, SamplingParams(**params), **options)
            assert caught.value.status == 400
            assert (await engine.generate([1], GREEDY)).token_ids == reference([1], 20)

    run(test)


@pytest.mark.subset
def test_E10_the_longest_prompt_leaves_room_for_one_token():
    async def test():
        async with idle_after(kvhash(max_model_len=64)) as engine:
            result = await engine.generate([1] * 63, greedy(1))
            assert (len(result.token_ids), result.finish_reason) == (1, "length")
            assert len((await engine.generate([1] * 60, greedy(None))).token_ids) == 4
            for length, max_tokens in ((63, 2), (64, 1), (65, None)):
                with pytest.raises(PromptTooLong, match=f"prompt has {length} tokens"):
                    await engine.generate([1] * length, greedy(max_tokens))

    run(test)


def test_max_tokens_none_takes_what_the_pool_holds():
    async def test():
        async with idle_after(kvhash(num_kv_blocks=4)) as engine:
            result = await engine.generate([1] * 10, greedy(None))
            assert len(result.token_ids) == 4 * 16 - 10 + 1
            with pytest.raises(PromptTooLong, match="pool holds 64"):
                await engine.generate([1] * 65, greedy(None))

    run(test)


def test_more_open_requests_than_the_limit_are_refused():
    async def test():
        async with idle_after(kvhash(max_queued_requests=3)) as engine:
            streams = [engine.stream([i], GREEDY) for i in range(3)]
            with pytest.raises(QueueFull, match="limit is 3"):
                engine.stream([9], GREEDY)
            for stream in streams:
                await stream.result()
            await engine.generate([9], GREEDY)

    run(test)


@pytest.mark.subset
def test_a_failing_row_raises_and_a_failing_step_too():
    async def test():
        faults = [{"kind": "nan", "index": 1, "prompt": 7}, {"kind": "raise", "index": 2, "prompt": 8}]
        async with idle_after(script([5, 6, 7], faults)) as engine:
            for prompt in (7, 8):
                with pytest.raises(RequestFailed, match="NaN|failed"):
                    await engine.generate([prompt], greedy(3))
                assert (await engine.generate([prompt], greedy(3))).token_ids == [5, 6, 7]

    run(test)


@pytest.mark.subset
@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_holds_requests_as_its_mode_says(mode):
    async def test():
        async with idle_after(kvhash(max_num_seqs=1)) as engine:
            running = engine.stream([1], greedy(100))
            await anext(running)
            waiting = engine.stream([2], GREEDY)
            await engine.pause(mode)
            await engine.pause(mode)
            stats = await engine.stats()
            assert (stats.num_running, stats.num_waiting) == {"abort": (0, 0), "wait": (0, 1), "keep": (1, 1)}[mode]
            await engine.resume()
            await engine.resume()
            reasons = [(await stream.result()).finish_reason for stream in (running, waiting)]
            assert reasons == (["abort", "abort"] if mode == "abort" else ["length", "length"])

    run(test)


@pytest.mark.subset
def test_C10_resetting_the_prefix_cache_through_the_api():
    async def test():
        async with idle_after(kvhash()) as engine:
            prompt = list(range(40))
            running = engine.stream(prompt, greedy(400))
            await anext(running)
            with pytest.raises(BusyError):
                await engine.reset_prefix_cache()
            await engine.reset_prefix_cache(force=True)
            result = await running.result()
            assert result.usage.completion_tokens == 400
            assert (await engine.generate(prompt, GREEDY)).usage.cached_tokens == 32
            await engine.reset_prefix_cache()
            again = await engine.generate(prompt, GREEDY)
            assert again.usage.cached_tokens == 0
            assert again.token_ids == reference(prompt, 20)

    run(test)


def test_C03_salts_never_share_through_the_api():
    async def test():
        async with idle_after(kvhash()) as engine:
            for salt in ("a", "b", None, ""):
                assert (await engine.generate(list(range(32)), GREEDY, cache_salt=salt)).usage.cached_tokens == 0
            assert (await engine.generate(list(range(32)), GREEDY, cache_salt="a")).usage.cached_tokens == 16

    run(test)


@pytest.mark.subset
def test_C05_prompt_logprobs_skip_cache_reads_and_are_whole_each_time():
    async def test():
        async with idle_after(kvhash(max_num_batched_tokens=16)) as engine:
            prompt = list(range(33))
            await engine.generate(prompt, GREEDY)
            params = greedy(2, prompt_logprobs=1)
            first, second = [await engine.generate(prompt, params) for _ in range(2)]
            assert first.usage.cached_tokens == 0
            assert len(first.prompt_logprobs) == 33
            assert first.prompt_logprobs[0] is None
            assert all(prompt[i] in first.prompt_logprobs[i] for i in range(1, 33))
            assert first.prompt_logprobs == second.prompt_logprobs

    run(test)


def test_B16_prompt_logprobs_come_with_the_first_output_after_the_last_chunk():
    async def test():
        lists = []
        for budget in (16, 1024):
            async with idle_after(kvhash(max_num_batched_tokens=budget)) as engine:
                chunks = [chunk async for chunk in engine.stream(list(range(100)), greedy(3, prompt_logprobs=2))]
                assert len(chunks[0].prompt_logprobs) == 100
                assert chunks[0].token_ids or len(chunks) > 1
                assert all(chunk.prompt_logprobs is None for chunk in chunks[1:])
                lists.append(chunks[0].prompt_logprobs)
        assert lists[0] == lists[1]

    run(test)


@pytest.mark.subset
def test_logprobs_have_an_entry_per_token():
    async def test():
        async with idle_after(kvhash()) as engine:
            for count in (0, 3):
                result = await engine.generate([4], greedy(5, logprobs=count))
                assert [next(iter(entry)) for entry in result.logprobs] == result.token_ids
                assert {len(entry) for entry in result.logprobs} == {max(1, count)}
                assert all(entry[t].rank == 1 for entry, t in zip(result.logprobs, result.token_ids, strict=True))

    run(test)


@pytest.mark.subset
def test_A11_min_tokens_and_ignore_eos_know_every_eos_id():
    async def test():
        tokens = [[2, 0, 28, 40 + i] for i in range(12)]
        async with idle_after(script(tokens, eos_ids=[2, 0])) as engine:
            assert (await engine.generate([1], greedy(12))).token_ids == [2]
            held = await engine.generate([1], greedy(12, min_tokens=8))
            assert held.token_ids == [28] * 8 + [2]
            assert held.stop_reason is None
            ignored = await engine.generate([1], greedy(12, ignore_eos=True))
            assert ignored.token_ids == [2] * 12
            both = greedy(12, ignore_eos=True, min_tokens=8, stop_token_ids=[28, 2])
            stopped = await engine.generate([1], both)
            assert stopped.token_ids == [0] * 8 + [2]
            assert stopped.stop_reason == 2

    run(test)


def test_D14_penalties_are_the_same_with_asynchronous_scheduling():
    async def test():
        outputs = []
        for is_async in (True, False):
            async with idle_after(kvhash(async_scheduling=is_async)) as engine:
                params = greedy(60, repetition_penalty=1.5, presence_penalty=1, frequency_penalty=1)
                outputs.append((await engine.generate([1, 2, 3], params)).token_ids)
        assert outputs[0] == outputs[1] != reference([1, 2, 3], 60)

    run(test)


def test_C11_penalties_see_the_whole_prompt_cold_and_warm():
    async def test():
        async with idle_after(kvhash()) as engine:
            params = greedy(30, repetition_penalty=1.8)
            cold, warm = [await engine.generate([3, 4] * 20, params) for _ in range(2)]
            assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, 32)
            assert cold.token_ids == warm.token_ids

    run(test)


@pytest.mark.subset
def test_D03_nothing_leaks_to_the_next_occupant_of_a_row():
    async def test():
        async with idle_after(kvhash(max_num_seqs=3)) as engine:
            plain = SamplingParams(max_tokens=8, temperature=0.9, seed=3)
            alone = (await engine.generate([8], plain)).token_ids
            special = [
                {"allowed_token_ids": [7]},
                {"logit_bias": {5: 100.0}},
                {"min_tokens": 6, "stop_token_ids": [1, 2, 3]},
                {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 3.0},
                {"bad_words": [text_of([9])]},
                {"logprobs": 3},
            ]
            for fields in special:
                others = [engine.stream([i], SamplingParams(max_tokens=6, **fields)) for i in range(3)]
                later = [engine.stream([8], plain) for _ in range(3)]
                for stream in others:
                    await stream.result()
                assert [(await stream.result()).token_ids for stream in later] == [alone] * 3

    run(test)


@pytest.mark.subset
def test_closing_the_engine_ends_open_streams_with_an_error():
    async def test():
        engine = await kvhash().start()
        stream = engine.stream([1], greedy(900))
        await anext(stream)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineClosed):
            async for _ in stream:
                pass
        with pytest.raises(EngineClosed):
            engine.stream([1])
        with pytest.raises(EngineClosed):
            await engine.stats()

    run(test)


def test_an_engine_that_was_not_started_says_so():
    with pytest.raises(EngineClosed, match="await start"):
        kvhash().stream([1])


def test_a_scheduler_that_breaks_ends_every_request_and_names_the_cause():
    class Broken:
        def __getattr__(self, name):
            from headrace.schedulers.policies.fcfs import FCFS

            return getattr(self.__dict__.setdefault("inner", FCFS()), name)

        def candidates(self, now):
            raise ZeroDivisionError("in candidates")

    async def test():
        async with kvhash(policy=Broken()) as engine:
            with pytest.raises(EngineClosed, match="ZeroDivisionError: in candidates"):
                await engine.generate([1])
            with pytest.raises(EngineClosed):
                await engine.generate([1])

    run(test)


def test_unknown_options_and_providers_stop_the_start():
    with pytest.raises(ConfigError, match="max_num_seq"):
        kvhash(max_num_seq=3)

    async def test():
        for overrides in ({"policy": "fsfc"}, {"options": {"runner": {"vocabsize": 3}}}, {"kv": "pagd"}):
            with pytest.raises(HeadraceError):
                async with kvhash(**overrides):
                    pass

    run(test)


@pytest.mark.subset
def test_a_trace_shows_every_process_and_the_overlap_of_steps():
    async def test():
        async with idle_after(kvhash()) as engine:
            await engine.generate([1, 2], greedy(30))
            spans = await engine.trace()
            names = {(span.process, span.name) for span in spans}
            assert names >= {
                ("input", "tokenize"),
                ("core", "schedule"),
                ("runner", "compute"),
                ("core", "update"),
                ("core", "publish"),
                ("output", "detokenize"),
            }
            assert all(span.end >= span.start for span in spans)
            computed = {span.step: span for span in spans if span.name == "compute"}
            scheduled = {span.step: span for span in spans if span.name == "schedule"}
            ahead = [step for step in range(2, 30) if scheduled[step].start < computed[step - 1].end]
            assert ahead, "batch N+1 is prepared while batch N computes"
            events = chrome_trace(spans)["traceEvents"]
            assert {event["args"]["name"] for event in events if event["ph"] == "M"} >= {"input", "core", "runner"}

    run(test)

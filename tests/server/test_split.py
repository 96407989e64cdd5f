"""The server on an engine in processes of its own, which serve starts by default."""

import asyncio
import statistics
import time

import aiohttp
import pytest
from engines import kvhash, script
from servers import serving

LONG = {"prompt": "Hello", "max_tokens": 100_000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def split():
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192, processes="split")) as server:
        yield server


def test_sixty_four_streams_at_once_equal_the_whole_answers(split):
    async def ask(client, number):
        fields = {"model": "headrace", "prompt": f"prompt {number}", "max_tokens": 16, "temperature": 0}
        stream = await client.completions.create(**fields, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        return streamed, (await client.completions.create(**fields)).choices[0].text

    async def ask_all():
        async with split.async_client() as client:
            return await asyncio.gather(*(ask(client, number) for number in range(64)))

    texts = asyncio.run(ask_all())
    assert [streamed for streamed, _ in texts] == [whole for _, whole in texts]
    assert len({streamed for streamed, _ in texts}) == 64
    split.check_idle()


def test_E01_fifty_clients_gone_at_once_leave_nothing(split):
    aborted = split.finished()["abort"]
    connections = [split.send("/v1/completions", {**LONG, "n": 1 + i % 2, "stream": bool(i % 3)}) for i in range(50)]
    split.wait_open(50)
    for connection in connections:
        connection.close()
    split.wait_open(0)
    split.check_idle()
    assert split.finished()["abort"] == aborted + 75


def test_errors_and_answers_of_every_process_arrive(split):
    assert split.get("/health").json()["status"] == "ok"
    assert split.post("/tokenize", {"prompt": "Hey", "return_token_strs": True}).json()["token_strs"] == [*"Hey"]
    assert split.post("/detokenize", {"tokens": [512]}).status == 400
    refused = split.post("/v1/completions", {"prompt": [[1], [512]]})
    assert (refused.status, refused.error()["param"]) == (400, "prompt")
    assert b"headrace:num_requests_running" in split.get("/metrics").body


@pytest.mark.verify
def test_E16_a_megabyte_of_prompt_stops_neither_health_nor_streams(smollm2):
    async def poll(session, health, is_over):
        while not is_over.is_set():
            start = time.perf_counter()
            async with session.get("/health") as answer:
                assert answer.status == 200
            health.append(time.perf_counter() - start)
            await asyncio.sleep(0.05)

    async def stream(session, gaps, is_over):
        async with session.post("/v1/completions", json={**LONG, "max_tokens": 8000, "stream": True}) as answer:
            last = time.perf_counter()
            async for _ in answer.content:
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                if is_over.is_set():
                    return

    async def test(address):
        health, gaps, is_over = [], [], asyncio.Event()
        async with aiohttp.ClientSession(address) as session, asyncio.TaskGroup() as group:
            group.create_task(poll(session, health, is_over))
            group.create_task(stream(session, gaps, is_over))
            async with session.post("/v1/completions", json={"prompt": "the quick brown fox " * 50_000}) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["code"] == "context_length_exceeded"
            is_over.set()
        assert statistics.quantiles(health, n=100)[-1] < 0.5
        assert max(gaps) < 1

    with serving(script([1000], model=smollm2, max_model_len=8192, num_kv_blocks=600, processes="split")) as server:
        asyncio.run(test(server.address))

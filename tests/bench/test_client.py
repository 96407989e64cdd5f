"""The client against servers that speak OpenAI's API less than wholly."""

import asyncio
import time

import pytest
from aiohttp import web

from headrace.bench.client import Client, Target

TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
LAST = b'data: {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


async def record_of(body):
    async def answer(_request):
        return web.Response(body=body, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        target = Target(url=url, model="m", is_chat=False, output_len=2, ignore_eos=False, temperature=0.0)
        async with Client(target, time.perf_counter()) as client:
            return await client.measure("Hello")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("body", [TOKEN + TOKEN + LAST + DONE, TOKEN + TOKEN + LAST, TOKEN + TOKEN + DONE])
def test_a_stream_ends_with_the_terminator_or_a_finish_reason(body):
    record = asyncio.run(record_of(body))
    assert (record.error, record.output_tokens) == (None, 2)


def test_a_stream_that_is_cut_off_is_an_error():
    assert "without [DONE]" in asyncio.run(record_of(TOKEN + TOKEN)).error

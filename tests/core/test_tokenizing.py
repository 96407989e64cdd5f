import asyncio
import threading

import pytest
from engines import run

from headrace.core.calls import Call, GetStats, Tokenize
from headrace.core.config import EngineConfig
from headrace.core.input import InputActor
from headrace.core.messages import (
    Abort,
    Admit,
    FrontendGone,
    KVGroup,
    Refused,
    RequestId,
    RunnerReady,
    StepOutput,
    Submit,
    SubmitAll,
)
from headrace.core.params import SamplingParams
from headrace.core.prompts import TextPrompt
from headrace.core.text.symbols import SymbolsOptions, SymbolsTokenizer
from headrace.core.tokenizing import SHORT, TokenizingPool

LONG = "a" * (SHORT + 1)
FACTS = RunnerReady(512, 100_000, (KVGroup(1, 10_000),), 8)


class GatedTokenizer(SymbolsTokenizer):
    """Holds long texts back until the test lets them through."""

    def __init__(self):
        super().__init__(SymbolsOptions())
        self.gate = threading.Event()
        self.count = 0

    def encode(self, text, add_special_tokens=True):
        if len(text) > SHORT:
            self.count += 1
            assert self.gate.wait(60)
        return super().encode(text, add_special_tokens)


def no_processor(name, arguments):
    raise AssertionError("no request names a logits processor")


class Pool:
    def __init__(self):
        self.sent = []
        self.came = asyncio.Event()
        self.tokenizer = GatedTokenizer()
        self.pool = TokenizingPool(InputActor(self.tokenizer, EngineConfig(), FACTS, self._send, None, no_processor))

    def _send(self, messages):
        self.sent += messages
        self.came.set()

    def handle(self, *messages):
        self.pool.handle(messages)

    async def until(self, count):
        while len(self.sent) < count:
            self.came.clear()
            await self.came.wait()
        return self.sent


def submit(counter, text, frontend=0, **params):
    return Submit(RequestId(frontend, counter, 0), TextPrompt(text), SamplingParams(seed=1, **params))


def counters(messages):
    return [message.request.counter for message in messages]


def test_a_frontend_s_order_is_kept_and_others_don_t_wait():
    async def test():
        pool = Pool()
        pool.handle(submit(1, LONG), submit(2, "short"), submit(3, LONG), submit(4, "short"))
        pool.handle(submit(1, "short", frontend=7))
        assert [message.request for message in pool.sent] == [RequestId(7, 1, 0)]
        pool.tokenizer.gate.set()
        assert counters((await pool.until(5))[1:]) == [1, 2, 3, 4]
        assert all(isinstance(message, Admit) for message in pool.sent)

    run(test)


def test_calls_and_aborts_overtake():
    async def test():
        pool = Pool()
        pool.handle(submit(1, LONG), submit(2, LONG, n=2), submit(3, "short"))
        pool.handle(Call(0, 9, GetStats()), Abort((RequestId(0, 2, 0), RequestId(0, 2, 1), RequestId(0, 99, 0))))
        assert pool.sent == [Call(0, 9, GetStats()), Abort((RequestId(0, 99, 0),))]
        pool.handle(Abort((RequestId(0, 1, 0),)))
        pool.tokenizer.gate.set()
        admitted, aborted, dropped, last = (await pool.until(6))[2:]
        assert isinstance(admitted, Admit)
        assert aborted == Abort((RequestId(0, 1, 0),))
        assert isinstance(dropped, StepOutput)
        assert [ended.request for ended in dropped.ended] == [RequestId(0, 2, 0), RequestId(0, 2, 1)]
        assert last.request.counter == 3
        assert pool.tokenizer.count == 1

    run(test)


def test_aborts_of_a_short_batch_behind_a_long_prompt_are_passed_on():
    async def test():
        pool = Pool()
        pool.handle(submit(1, LONG), SubmitAll((submit(2, "short"), submit(3, "short"))))
        pool.handle(Abort((RequestId(0, 3, 0),)))
        pool.tokenizer.gate.set()
        *admitted, aborted = await pool.until(4)
        assert counters(admitted) == [1, 2, 3]
        assert aborted == Abort((RequestId(0, 3, 0),))
        assert not pool.pool._aborted
        assert not pool.pool._pending

    run(test)


def test_many_bad_words_are_as_long_as_their_texts():
    async def test():
        pool = Pool()
        pool.handle(submit(1, "short", bad_words=["b" * 1024] * 5))
        assert pool.sent == []
        assert counters(await pool.until(1)) == [1]

    run(test)


def test_what_a_dead_frontend_had_sent_is_dropped_or_aborted_whenever_it_comes():
    async def test():
        pool = Pool()
        pool.handle(submit(1, LONG, frontend=1), submit(2, LONG, frontend=1), FrontendGone(1))
        pool.handle(submit(3, "short", frontend=1), Call(1, 9, GetStats()), Call(1, 10, Tokenize(TextPrompt("x"))))
        pool.handle(submit(1, "short", frontend=2))
        pool.tokenizer.gate.set()
        gone, other, admitted, aborted, dropped = await pool.until(5)
        assert gone == FrontendGone(1)
        assert other.request == RequestId(2, 1, 0)
        assert (admitted.request, aborted) == (RequestId(1, 1, 0), Abort((RequestId(1, 1, 0),)))
        assert [ended.request for ended in dropped.ended] == [RequestId(1, 2, 0)]

    run(test)


@pytest.mark.parametrize("text", [LONG, "short"])
def test_one_invalid_of_a_submission_refuses_all(text):
    async def test():
        pool = Pool()
        pool.tokenizer.gate.set()
        pool.handle(SubmitAll((submit(1, text), submit(2, ""), submit(3, "fine"))))
        refused = await pool.until(3)
        assert all(isinstance(message, Refused) for message in refused)
        assert {message.request.counter: message.error.kind for message in refused} == {
            1: "BatchRefused",
            2: "InvalidPrompt",
            3: "BatchRefused",
        }

    run(test)

"""The journal of a frontend, without an engine: what it sends, and what it makes of what comes back."""

import asyncio
import gc
from types import SimpleNamespace

import pytest
from engines import run

from headrace import SamplingParams
from headrace.ask import ask_prompt
from headrace.core.calls import Call, GetStats, Pause, Reply, Resume, Tokenize
from headrace.core.columns import pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import EngineClosed, InvalidParameter, InvalidPrompt
from headrace.core.messages import Abort, Delta, Finished, RequestId, Submit, Usage
from headrace.core.prompts import TextPrompt
from headrace.frontend import Frontend
from headrace.stream import Stream


def connected(**config):
    sent = []
    frontend = Frontend(0, EngineConfig(**config))
    frontend.connect(lambda *messages: sent.extend(messages))
    return SimpleNamespace(frontend=frontend, sent=sent)


def submit(f, prompt="Hello", **params):
    (request,) = f.frontend.submit([ask_prompt(prompt, SamplingParams(**params))])
    return request


def test_a_stream_that_is_collected_sends_nothing_until_the_loop_runs_again():
    """A collection may come inside a lock of the links, where sending would wait for itself."""

    async def test():
        f = connected()
        cycle = [Stream(f.frontend, submit(f))]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert [type(message) for message in f.sent] == [Submit]
        await asyncio.sleep(0)
        assert [type(message) for message in f.sent] == [Submit, Abort]

    run(test)


def refuse_all(*_messages):
    raise TypeError("Encoding objects of type object is unsupported")


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ([1], {"policy_args": {"a": object()}}, "policy_args"),
        ("\ud800", {}, "prompt"),
        ([1], {"cache_salt": "\ud800"}, "cache_salt"),
    ],
)
def test_what_no_message_can_carry_is_a_typed_error_and_leaves_nothing(prompt, options, field):
    async def test():
        frontend = Frontend(0, EngineConfig())
        frontend.connect(refuse_all)
        with pytest.raises(InvalidParameter, match=f"{field} holds a value that can't be sent") as caught:
            frontend.submit([ask_prompt([1], None), ask_prompt(prompt, None, **options)])
        assert caught.value.field == field
        assert frontend.num_open() == 0
        with pytest.raises(InvalidParameter, match="the call holds"):
            await frontend.call(Tokenize(TextPrompt("\ud800")))

    run(test)


@pytest.mark.parametrize("wrong", [["abc"], [True], [1.5], [None], [2**70], [-1], [0, 2**31]])
def test_D05_what_can_be_no_token_id_never_gets_to_another_process(wrong):
    with pytest.raises(InvalidPrompt, match="prompt has the token id .*, ids are whole numbers from 0 on"):
        ask_prompt(wrong, None)


def test_calls_leave_the_seeds_of_later_requests_alone():
    async def test():
        seeds = []
        for num_calls in (0, 3):
            f = connected(seed=1)
            for number in range(1, num_calls + 1):
                f.sent.clear()
                f.frontend.inbox.send(Reply(0, number))
                call = asyncio.create_task(f.frontend.call(GetStats()))
                await asyncio.sleep(0)
                f.frontend.handle(f.frontend.inbox.buffer.drain())
                await call
            seeds.append(submit(f).submit.params.seed)
        assert seeds[0] == seeds[1]

    run(test)


def test_a_request_aborted_while_the_engine_was_away_ends_with_its_usage():
    async def test():
        f = connected()
        request = submit(f, max_tokens=9)
        f.frontend.handle([Delta(request.submit.request, "abc", pack_ints([1, 2, 3]))])
        request.take()
        f.frontend.disconnect()
        f.frontend.abort(request, drop=False)
        f.sent.clear()
        f.frontend.connect(lambda *messages: f.sent.extend(messages))
        resubmitted, aborted = f.sent
        assert resubmitted.regained[0].token_ids == pack_ints([1, 2, 3])
        assert aborted == Abort((request.submit.request,))
        f.frontend.handle([Finished(Delta(request.submit.request, ""), "abort", Usage(5, 0))])
        (chunk,) = request.take()
        assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (5, 3)
        assert f.frontend.num_open() == 0

    run(test)


def test_a_pause_holds_in_an_engine_that_starts_again():
    async def say(f, what):
        call = asyncio.create_task(f.frontend.call(what))
        await asyncio.sleep(0)
        f.frontend.handle([Reply(0, f.sent[-1].call)])
        await call

    def again(f):
        f.sent.clear()
        f.frontend.connect(lambda *messages: f.sent.extend(messages))
        return f.sent[:]

    async def test():
        f = connected()
        submit(f)
        for asked, kept in (("keep", "keep"), ("wait", "wait"), ("abort", "wait")):
            await say(f, Pause(asked))
            paused, resubmitted = again(f)
            assert paused.what == Pause(kept)
            assert isinstance(resubmitted, Submit)
        await say(f, Resume())
        assert [type(message) for message in again(f)] == [Submit]
        assert isinstance(f.sent[0], Submit)
        assert not any(isinstance(message, Call) for message in f.sent)

    run(test)


def test_a_closed_frontend_raises_a_new_error_each_time():
    async def test():
        f = connected()
        f.frontend.close("it ended")
        errors = []
        for _ in range(2):
            with pytest.raises(EngineClosed, match="it ended") as caught:
                submit(f)
            errors.append(caught.value)
        assert errors[0] is not errors[1], "an error that is raised again keeps the frames of all times"

    run(test)


def test_ids_of_a_request_are_those_of_its_unfinished_choices():
    async def test():
        f = connected()
        request = submit(f, n=3)
        f.frontend.handle([Finished(Delta(RequestId(0, 1, 1), ""), "stop", Usage(5, 1))])
        assert [request_id.choice for request_id in request.ids()] == [0, 2]

    run(test)

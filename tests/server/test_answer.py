"""Answers whole and streamed: usage, parity, failures."""

import pytest
from engines import script
from servers import serving

from headrace import Engine
from headrace.core.text.symbols import SymbolsDetokenizer, SymbolsOptions, SymbolsTokenizer

GREEDY = {"prompt": "Hello", "temperature": 0, "max_tokens": 12}


def usages(server, **fields):
    events = server.post("/v1/completions", {**GREEDY, "stream": True, **fields}).events()
    return [event["usage"] for event in events if "usage" in event], events


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_E02_a_stream_has_no_usage_unless_asked(server, options):
    told, events = usages(server, stream_options=options)
    assert told == []
    assert all(event["choices"] for event in events)


def test_E02_usage_comes_once_in_an_event_of_its_own_before_the_end(server):
    told, events = usages(server, stream_options={"include_usage": True})
    assert len(told) == 1
    assert events[-1]["choices"] == []
    assert (told[0]["prompt_tokens"], told[0]["completion_tokens"], told[0]["total_tokens"]) == (5, 12, 17)


def test_E02_stream_options_without_stream_are_refused(server):
    answer = server.post("/v1/completions", {**GREEDY, "stream_options": {"include_usage": True}})
    assert answer.status == 400
    assert answer.error()["param"] == "stream_options"


def test_E14_usage_sums_over_prompts_and_choices(server):
    cached = "the first thirty-two characters of this"
    server.post("/v1/completions", {**GREEDY, "prompt": cached})
    body = {"prompt": [cached, "Hello", "Hey"], "n": 2, "max_tokens": 6, "temperature": 1, "seed": 5}
    whole = server.post("/v1/completions", body).json()["usage"]
    streamed, _ = usages(server, **body, stream_options={"include_usage": True})
    assert whole["prompt_tokens"] == len(cached) + 5 + 3
    assert whole["completion_tokens"] == 36
    assert whole["prompt_tokens_details"] == {"cached_tokens": 32}
    assert streamed[0] == whole


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1, "seed": 1}, {"prompt": ["a", "b"], "logprobs": 2}])
def test_streamed_and_whole_answers_say_the_same(server, fields):
    whole = server.post("/v1/completions", {**GREEDY, **fields}).json()
    _, events = usages(server, **fields)
    for choice in whole["choices"]:
        mine = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [item for each in mine for item in each["logprobs"][column]] == choice["logprobs"][column]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [False, True])
def test_E06_a_failure_before_the_first_byte_is_a_real_500(is_stream):
    with serving(script([1, 2, 3], faults=[{"kind": "raise", "index": 0}])) as server:
        answer = server.post("/v1/completions", {**GREEDY, "stream": is_stream})
        assert answer.status == 500
        assert answer.error()["code"] == "request_failed"
        assert server.post("/v1/completions", {**GREEDY, "stream": is_stream}).status == 200


def test_E06_a_failure_in_mid_stream_is_the_last_event():
    with serving(script([1, 2, 3], faults=[{"kind": "raise", "index": 5}])) as server:
        *events, last = server.post("/v1/completions", {**GREEDY, "stream": True}).events()
        assert all(event["choices"][0]["finish_reason"] is None for event in events)
        assert set(last["error"]) == {"message", "type", "param", "code"}
        assert last["error"]["type"] == "server_error"


def test_D13_a_row_of_nan_fails_its_own_request_only():
    faults = [{"kind": "nan", "index": 3, "prompt": 65}]
    with serving(script([1, 2, 3, 4], faults=faults)) as server:
        failed = server.post("/v1/completions", {**GREEDY, "prompt": "abc"})
        assert failed.status == 500
        assert server.post("/v1/completions", GREEDY).status == 200


class BrokenTokenizer(SymbolsTokenizer):
    """Its detokenizer fails on the letter Z."""

    def detokenizer(self, prompt_tail, skip_special_tokens):
        return BrokenDetokenizer()


class BrokenDetokenizer(SymbolsDetokenizer):
    def push(self, token_ids):
        if ord("Z") - 0x20 in token_ids:
            raise RuntimeError("no Z")
        return super().push(token_ids)


def test_E06_a_failing_detokenizer_ends_its_own_request():
    tokens = [1, 2, 3, ord("Z") - 0x20]
    options = {"runner": {"tokens": tokens, "filler": 9, "vocab_size": 512}}
    tokenizer = BrokenTokenizer(SymbolsOptions())
    engine = Engine(runner="script", tokenizer=tokenizer, options=options, max_model_len=128, processes="inline")
    with serving(engine) as server:
        assert server.post("/v1/completions", GREEDY).status == 500
        assert "error" in server.post("/v1/completions", {**GREEDY, "stream": True}).events()[-1]
        assert server.post("/v1/completions", {**GREEDY, "max_tokens": 3}).status == 200

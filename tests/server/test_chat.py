"""POST /v1/chat/completions: messages, limits, chunks, log probabilities."""

import pytest
from engines import kvhash, script
from servers import serving

HI = {"role": "user", "content": "Hi"}
TEXT = {"type": "text", "text": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def templated(smollm2):
    """A server with the real tokenizer and chat template, which always says the same."""
    with serving(script([19556, 28, 905, 2], model=smollm2)) as server:
        yield server


def ask(server, **fields):
    answer = server.post("/v1/chat/completions", {"temperature": 0, "messages": [HI], **fields})
    assert answer.status == 200, answer.body
    return answer.json()


def test_a_chat_runs_through_the_models_template(templated):
    answer = ask(templated)
    assert answer["usage"]["prompt_tokens"] == 31
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello, world"}
    assert (answer["choices"][0]["finish_reason"], answer["choices"][0]["stop_reason"]) == ("stop", None)
    assert answer["usage"]["completion_tokens"] == 4


def test_E08_text_parts_are_one_text(templated):
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day"}]
    whole = ask(templated, messages=[{"role": "user", "content": "Good day"}])["usage"]
    assert (
        ask(templated, messages=[{"role": "user", "content": parts}])["usage"]["prompt_tokens"]
        == (whole["prompt_tokens"])
    )


def test_E08_an_assistant_message_may_be_null_beside_tool_calls(templated):
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    ask(templated, messages=[HI, called, {"role": "tool", "tool_call_id": "1", "content": "42"}])


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user"}],
        [{"content": "Hi"}],
        [{"role": "SYSTEM", "content": "Hi"}],
        [{"role": ["user"], "content": "Hi"}],
        [{"role": "assistant", "content": "Hi"}],
        [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        ["Hi"],
        "Hi",
        None,
    ],
)
def test_E08_other_messages_are_refused_naming_the_one_at_fault(templated, messages):
    answer = templated.post("/v1/chat/completions", {"messages": messages})
    assert answer.status == 400
    assert answer.error()["param"].startswith("messages")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "banana"}),
        ("response_format", "json"),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"regex": "a"}),
        ("top_logprobs", 2),
    ],
)
def test_E13_what_is_not_supported_is_refused_rather_than_ignored(server, field, value):
    answer = server.post("/v1/chat/completions", {"messages": [HI], field: value})
    assert answer.status == 400
    assert answer.error()["param"] == field


def test_what_asks_for_nothing_special_is_accepted(server):
    ask(server, max_tokens=2, tools=[], tool_choice="none", response_format={"type": "text"}, top_logprobs=0)


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 5}, 3),
        ({"max_completion_tokens": 0}, 0),
        ({"max_tokens": 0}, 0),
        ({}, 62),
    ],
)
def test_E10_the_newer_name_counts_and_nothing_said_fills_the_context(fields, num_tokens):
    with serving(kvhash(max_model_len=64)) as server:
        answer = ask(server, **fields)
        assert answer["usage"]["completion_tokens"] == num_tokens
        assert len(answer["choices"][0]["message"]["content"]) == num_tokens
        assert answer["choices"][0]["finish_reason"] == "length"


# --- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_E11_each_choice_tells_its_role_once_and_its_reason_last(server, n):
    body = {"messages": [HI], "temperature": 0, "max_tokens": 3, "n": n, "stream": True}
    body["stream_options"] = {"include_usage": True}
    *events, usage = server.post("/v1/chat/completions", body).events()
    assert usage["choices"] == []
    assert len({(event["id"], event["created"]) for event in [*events, usage]}) == 1
    for index in range(n):
        mine = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert ["role" in choice["delta"] for choice in mine] == [True] + [False] * (len(mine) - 1)
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
        whole = ask(server, max_tokens=3)["choices"][0]["message"]["content"]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == whole


# --- log probabilities ------------------------------------------------------------------------------------------------


def test_D09_logprobs_without_alternatives_have_empty_lists(templated):
    answer = ask(templated, logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["Hello", ",", " world", "<|im_end|>"]
    assert [entry["top_logprobs"] for entry in entries] == [[]] * 4
    assert len(entries) == answer["usage"]["completion_tokens"]
    assert bytes(entries[2]["bytes"]).decode() == " world"


def test_D09_twenty_alternatives_up_to_the_end_of_text(templated):
    entries = ask(templated, logprobs=True, top_logprobs=20)["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [20] * 4
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries)


def test_streamed_logprobs_are_those_of_the_whole_answer(templated):
    fields = {"logprobs": True, "top_logprobs": 2}
    body = {"messages": [HI], "temperature": 0, "stream": True, **fields}
    streamed = [
        entry
        for event in templated.post("/v1/chat/completions", body).events()
        for choice in event["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == ask(templated, **fields)["choices"][0]["logprobs"]["content"]

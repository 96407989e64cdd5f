"""Text and stopping through HTTP, with the real tokenizer: a stream's joined text is that of the whole answer."""

import json
import random

import pytest

FAMILY = "👨‍👩‍👧‍👦"
SENTENCE = "Here is the English alphabet: ABCDEFGHIJKLMNOPQRSTUVWXYZ, all of it."


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    from headrace.core.text.tokenizer import load_tokenizer

    return load_tokenizer(smollm2)


def both(server, num_tokens, **fields):
    """Return the choice as one and its deltas."""
    body = {"prompt": "Hi", "temperature": 0, "max_tokens": num_tokens, **fields}
    whole = server.post("/v1/completions", body)
    assert whole.status == 200, whole.body
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    *events, usage = server.post("/v1/completions", body).events()
    choice, deltas = whole.json()["choices"][0], [event["choices"][0] for event in events]
    assert "".join(delta["text"] for delta in deltas) == choice["text"]
    assert (deltas[-1]["finish_reason"], deltas[-1]["stop_reason"]) == (choice["finish_reason"], choice["stop_reason"])
    assert [delta["finish_reason"] for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert whole.json()["usage"]["completion_tokens"] == usage["usage"]["completion_tokens"]
    return choice, deltas, usage["usage"]


@pytest.mark.parametrize("text", ["😀", "你", FAMILY])
def test_A01_characters_split_over_tokens_arrive_whole(scripted, tokenizer, text):
    token_ids = tokenizer.encode(text)
    with scripted([*token_ids, 2]) as server:
        choice, deltas, _ = both(server, 40)
        assert choice["text"] == text
        assert not any("\ufffd" in delta["text"] for delta in deltas)


def test_A02_a_partial_character_comes_with_the_last_chunk(scripted):
    with scripted([19556, 10813, 242]) as server:
        choice, deltas, usage = both(server, 3)
        assert (choice["text"], choice["finish_reason"], usage["completion_tokens"]) == ("Hello\ufffd", "length", 3)
        assert deltas[-1]["text"].endswith("\ufffd")


@pytest.mark.parametrize("included", [False, True])
def test_A05_the_text_ends_at_the_first_stop_string(scripted, tokenizer, included):
    token_ids = tokenizer.encode(SENTENCE)
    with scripted([*token_ids, 2]) as server:
        for start in range(0, len(SENTENCE), 7):
            stop = SENTENCE[start : start + 1 + start % 12]
            first = SENTENCE.index(stop)
            choice, _, _ = both(server, 60, stop=stop, include_stop_str_in_output=included)
            assert choice["text"] == SENTENCE[: first + (len(stop) if included else 0)]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_A06_text_held_back_for_a_stop_that_never_comes_is_not_lost(scripted, tokenizer):
    token_ids = tokenizer.encode(SENTENCE)
    with scripted(token_ids) as server:
        choice, _, _ = both(server, len(token_ids), stop=[SENTENCE[-3:] + "ZZ"])
        assert (choice["text"], choice["finish_reason"]) == (SENTENCE, "length")


def test_A08_a_stop_string_in_the_echoed_prompt_stops_nothing(scripted):
    with scripted([48124, 1535]) as server:
        choice, _, _ = both(server, 2, prompt="STOP", echo=True, stop=["OP", "TO"])
        assert choice["text"] == "STOPS"
        assert choice["stop_reason"] == "TO"


@pytest.mark.parametrize(("token_ids", "text"), [([81, 333, 278], "a    b"), ([40686, 2273], " " * 64 + " X")])
def test_A10_no_space_is_swallowed(scripted, token_ids, text):
    with scripted(token_ids) as server:
        assert both(server, len(token_ids))[0]["text"] == text


def test_A13_a_special_token_stops_unseen_and_is_counted(scripted):
    with scripted([19556, 905, 2]) as server:
        for fields in ({"stop_token_ids": [2]}, {"stop": ["<|im_end|>"]}):
            choice, _, usage = both(server, 9, **fields)
            assert (choice["text"], choice["finish_reason"]) == ("Hello world", "stop")
            assert usage["completion_tokens"] == 3


def test_E17_stop_reason_tells_string_id_or_nothing(scripted):
    with scripted([19556, 28, 905, 2]) as server:
        assert both(server, 9, stop=" wor")[0]["stop_reason"] == " wor"
        assert both(server, 9, stop_token_ids=[28])[0]["stop_reason"] == 28
        assert both(server, 9, stop=[])[0]["stop_reason"] is None
        assert both(server, 9, stop=None)[0]["stop_reason"] is None
        assert both(server, 9, stop=[*"abcfg"])[0]["finish_reason"] == "stop"
        assert both(server, 9, stop=[*"abcfghijkmnpqstuv"])[0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], ["a"] * 65, [1], 5])
def test_E17_an_empty_stop_string_is_refused(server, stop):
    answer = server.post("/v1/completions", {"prompt": "Hello", "stop": stop})
    assert answer.status == 400
    assert answer.error()["param"].startswith("stop")


def test_E13_any_bytes_of_a_model_become_strict_json(scripted):
    token_ids = random.Random(13).choices(range(49152), k=150)
    with scripted(token_ids) as server:
        choice, _, _ = both(server, 150, ignore_eos=True, logprobs=3)
        json.dumps(choice, allow_nan=False).encode()


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("logit_bias", "allowed_token_ids", "stop_token_ids")
        for value in (49152, 99999999, -1, 2**40, "abc")
    ]
    + [("allowed_token_ids", []), ("top_p", 0), ("top_p", 1.01), ("temperature", -1), ("logprobs", -1)]
    + [("logprobs", 21), ("logprobs", 2 * 10**9), ("top_k", -2), ("min_p", 2), ("n", 0), ("max_tokens", -1)],
)
def test_D05_D08_values_out_of_range_are_refused_by_name(server, field, value):
    if field == "logit_bias":
        value = {str(value): 1}
    elif field.endswith("_ids") and value != []:
        value = [value]
    answer = server.post("/v1/completions", {"prompt": "Hello", field: value})
    assert answer.status == 400
    assert field in answer.error()["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("top_k", value) for value in (-1, 0, 1, 10**9)),
        *(("temperature", value) for value in (1e-8, 1e-40)),
        *(("logprobs", 20), ("top_p", 1e-6), ("min_p", 1.0)),
    ],
)
def test_D07_D08_values_at_the_edge_are_served(server, field, value):
    answer = server.post("/v1/completions", {"prompt": "Hello", "seed": 1, field: value})
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 16


def test_a_logits_processor_that_is_unknown_is_refused_by_name(server):
    answer = server.post("/v1/completions", {"prompt": "Hello", "logits_processors": {"no-such": {}}})
    assert (answer.status, answer.error()["param"]) == (400, "logits_processors")
    assert "'no-such', which no plugin provides" in answer.error()["message"]


def test_D06_allowing_only_what_is_forbidden_is_refused(server):
    answer = server.post("/v1/completions", {"prompt": "Hello", "allowed_token_ids": [33], "bad_words": ["A"]})
    assert answer.status == 400


def test_D01_a_seed_decides_alone(server):
    body = {"prompt": "Hello", "seed": 42, "temperature": 0.8, "max_tokens": 16}
    alone = server.post("/v1/completions", body).json()["choices"][0]["text"]
    many = server.post("/v1/completions", {**body, "prompt": ["Hello", "World", "Hello"]}).json()["choices"]
    assert [many[0]["text"], many[2]["text"]] == [alone, alone]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "seed": 42, "temperature": 0.8, "max_tokens": 16}
    assert server.post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"] == alone

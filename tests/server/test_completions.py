"""POST /v1/completions: forms of prompts, echo, log probabilities, limits."""

import pytest
from engines import kvhash
from servers import serving

GREEDY = {"temperature": 0, "max_tokens": 4}


def ask(server, **fields):
    answer = server.post("/v1/completions", {**GREEDY, **fields})
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], ["a", ""], ["Hello", 905], [5, [6]], None, 5, [1.5], [True], [-1], [512], [2**40]]
)
def test_E03_empty_mixed_and_impossible_prompts_are_refused_and_the_server_lives_on(server, prompt):
    answer = server.post("/v1/completions", {"prompt": prompt, **GREEDY})
    assert answer.status == 400
    assert answer.error()["param"].startswith("prompt")
    ask(server, prompt="Hello")


def test_E03_a_list_of_ids_is_one_prompt(server):
    answer = ask(server, prompt=[40, 69])
    assert [choice["index"] for choice in answer["choices"]] == [0]
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["text"] == ask(server, prompt="He")["choices"][0]["text"]


def test_E03_a_list_of_prompts_gives_one_choice_each_in_order(server):
    alone = [ask(server, prompt=prompt)["choices"][0]["text"] for prompt in ("Hello", "He", "a")]
    for prompts in (["Hello", "He", "a"], [[40, 69, 76, 76, 79], [40, 69], [65]]):
        choices = ask(server, prompt=prompts)["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        assert [choice["text"] for choice in choices] == alone


def test_n_choices_of_several_prompts_are_counted_through(server):
    answer = ask(server, prompt=["Hello", "World"], n=3, temperature=1, seed=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    other = ask(server, prompt="Hello", n=3, temperature=1, seed=3)
    assert [choice["text"] for choice in answer["choices"][:3]] == [choice["text"] for choice in other["choices"]]


def test_B14_n_far_above_the_rows_gives_each_choice_once():
    with serving(kvhash(max_num_seqs=4, num_kv_blocks=12)) as server:
        body = {"prompt": "Hello", "n": 20, "max_tokens": 4, "stream": True}
        ends = [
            event["choices"][0]["index"]
            for event in server.post("/v1/completions", body).events()
            if event["choices"][0]["finish_reason"]
        ]
        assert sorted(ends) == list(range(20))


def test_B09_one_bad_prompt_refuses_all_and_names_it(server):
    before = server.finished()
    answer = server.post("/v1/completions", {"prompt": [[1], [512], [2]], **GREEDY})
    assert answer.status == 400
    assert "512" in answer.error()["message"]
    assert server.finished() == before


# --- echo and log probabilities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["Hello", [40, 69, 76, 76, 79]])
def test_echo_puts_the_prompt_before_the_text(server, prompt):
    alone = ask(server, prompt=prompt)["choices"][0]["text"]
    assert ask(server, prompt=prompt, echo=True)["choices"][0]["text"] == "Hello" + alone
    events = server.post("/v1/completions", {**GREEDY, "prompt": prompt, "echo": True, "stream": True}).events()
    assert "".join(event["choices"][0]["text"] for event in events) == "Hello" + alone


def test_D08_logprobs_0_gives_the_tokens_value_and_no_alternatives(server):
    logprobs = ask(server, prompt="Hello", logprobs=0)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4
    assert logprobs["top_logprobs"] is None


def test_logprobs_are_columns_over_the_tokens(server):
    choice = ask(server, prompt="Hello", logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert len(top) == 2
        assert top[token] == value == max(top.values())


def test_a_sampled_token_stands_beside_the_likeliest_ones(server):
    logprobs = ask(server, prompt="Hello", logprobs=1, temperature=5, seed=1, max_tokens=8)["choices"][0]["logprobs"]
    assert {len(top) for top in logprobs["top_logprobs"]} <= {1, 2}
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))


@pytest.mark.parametrize("is_stream", [False, True])
def test_E04_echo_with_max_tokens_0_scores_the_prompt_only(server, is_stream):
    body = {"prompt": "Hello", "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        events = server.post("/v1/completions", body).events()
        choices, usage = [choice for event in events for choice in event["choices"]], events[-1]["usage"]
    else:
        answer = ask(server, **body)
        choices, usage = answer["choices"], answer["usage"]
    assert "".join(choice["text"] for choice in choices) == "Hello"
    assert choices[-1]["finish_reason"] == "length"
    assert usage["completion_tokens"] == 0
    logprobs = [choice["logprobs"] for choice in choices]
    assert [token for each in logprobs for token in each["tokens"]] == list("Hello")
    values = [value for each in logprobs for value in each["token_logprobs"]]
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])


def test_E04_max_tokens_0_without_echo_gives_no_text(server):
    answer = ask(server, prompt="Hello", max_tokens=0)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 0)


@pytest.mark.parametrize("is_cached", [False, True])
def test_C05_echoed_logprobs_are_the_same_with_a_warm_cache(server, is_cached):
    prompt = "the same thirty-three characters." * 2
    if is_cached:
        ask(server, prompt=prompt)
    logprobs = ask(server, prompt=prompt, echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"][:66] == list(prompt)
    assert logprobs["token_logprobs"][0] is None
    assert None not in logprobs["token_logprobs"][1:]


def test_D11_impossible_tokens_have_finite_log_probabilities(server):
    for fields in ({"allowed_token_ids": [7]}, {"top_k": 1}):
        ask(server, prompt="Hello", logprobs=5, echo=True, **fields)


def test_prompt_logprobs_come_in_vllms_shape(server):
    first, second, *_ = ask(server, prompt="Hello", prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert first is None
    assert set(second["69"]) == {"logprob", "rank", "decoded_token"}


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short():
    with serving(kvhash(max_model_len=64)) as server:
        yield server


def test_E10_the_last_token_of_the_context_can_be_used(short):
    answer = ask(short, prompt=[1] * 63, max_tokens=1)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(("num_prompt", "max_tokens", "counts"), [(63, 2, "65"), (64, 1, "64"), (65, 1, "65")])
def test_E10_past_the_context_is_refused_with_both_counts(short, num_prompt, max_tokens, counts):
    answer = short.post("/v1/completions", {"prompt": [1] * num_prompt, "max_tokens": max_tokens})
    assert answer.status == 400
    error = answer.error()
    assert error["code"] == "context_length_exceeded"
    assert counts in error["message"]
    assert "64" in error["message"]


def test_E10_completions_give_16_tokens_when_nothing_is_said(short):
    assert ask(short, prompt=[1], max_tokens=None)["usage"]["completion_tokens"] == 16


def test_a_deadline_ends_a_request_with_408():
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192)) as server:
        body = {"prompt": "Hello", "max_tokens": 100_000, "ignore_eos": True, "deadline_s": 0.05}
        answer = server.post("/v1/completions", body)
        assert answer.status == 408
        assert answer.error()["code"] == "deadline_exceeded"

"""Stops, words and log probabilities on the real model, where the text is not of our choosing."""

import random

import pytest

from headrace import LLM, SamplingParams

ALPHABET = "Here is the English alphabet: ABC"
WATER_BOILS_AT = [12615, 36411, 418]


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(smollm2, runner="torch", dtype="float32", max_model_len=512) as llm:
        yield llm


@pytest.fixture(scope="module")
def text(llm):
    """What follows without any stop."""
    return generate(llm).text


def generate(llm, prompt=ALPHABET, max_tokens=40, **fields):
    params = SamplingParams(temperature=0, max_tokens=max_tokens, **fields)
    return llm.generate(prompt, params, use_tqdm=False)[0]


def test_A05_any_part_of_the_text_stops_at_its_first_occurrence(llm, text):
    rng = random.Random(5)
    cuts = [(start := rng.randrange(len(text) - 12), text[start : start + rng.randint(1, 12)]) for _ in range(30)]
    for include in (False, True):
        params = [
            SamplingParams(temperature=0, max_tokens=40, stop=stop, include_stop_str_in_output=include)
            for _, stop in cuts
        ]
        results = llm.generate([ALPHABET] * len(cuts), params, use_tqdm=False)
        for (_, stop), result in zip(cuts, results, strict=True):
            end = text.index(stop) + (len(stop) if include else 0)
            assert (result.text, result.finish_reason, result.stop_reason) == (text[:end], "stop", stop)


def test_A06_a_stop_that_never_completes_gives_its_text_back(llm, text):
    result = generate(llm, stop=text[-3:] + "ZZ")
    assert (result.text, result.finish_reason) == (text, "length")


def test_D10_a_bad_phrase_is_never_completed_and_its_first_word_may_come(llm):
    free = generate(llm, "The capital of France is", 12).text
    assert " Paris" in free
    for bad in ("Paris", " Paris"):
        assert "Paris" not in generate(llm, "The capital of France is", 12, bad_words=[bad]).text
    words = free.split()
    phrase = " ".join(words[1:3])
    result = generate(llm, "The capital of France is", 12, bad_words=[phrase])
    assert phrase not in result.text


def test_D07_tiny_temperatures_and_top_p_are_greedy(llm, text):
    tiny = ({"temperature": 1e-8}, {"temperature": 1e-4}, {"temperature": 1.0, "top_p": 1e-6}, {"min_p": 1.0})
    params = [SamplingParams(max_tokens=40, seed=1, logprobs=1, **fields) for fields in tiny]
    for result in llm.generate([ALPHABET] * len(tiny), params, use_tqdm=False):
        assert result.text == text
        assert all(entry.logprob > -100 for position in result.logprobs for entry in position.values())


def test_prompt_logprobs_are_those_of_the_same_tokens_generated(llm):
    generated = generate(llm, WATER_BOILS_AT, 8, logprobs=2)
    prompt = generate(llm, [*WATER_BOILS_AT, *generated.token_ids], 1, prompt_logprobs=2)
    for given, sampled in zip(prompt.prompt_logprobs[-8:], generated.logprobs, strict=True):
        token_id, entry = next(iter(sampled.items()))
        assert given[token_id].logprob == pytest.approx(entry.logprob, abs=1e-4)
        assert given[token_id].rank == entry.rank


def test_a_chat_answers_through_the_model_s_template(llm):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)[0]
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.stop_reason is None
    again = llm.chat(question, SamplingParams(temperature=0, max_tokens=30), use_tqdm=False)[0]
    assert again.usage.cached_tokens > 0
    assert again.text == answer.text

"""Every limit of sampling parameters, with the field named."""

import math

import pytest

from headrace.core.errors import InvalidParameter
from headrace.core.params import MAX_COPIED, SamplingParams

WRONG = {
    "n": [0, -1, 1025, 10**6, 1.0, True, "2", None],
    "temperature": [-1, math.nan, math.inf, "hot", None, True],
    "top_p": [0, -0.1, 1.01, math.nan, "1"],
    "top_k": [-2, 1.5, 2**31, None],
    "min_p": [-0.1, 1.1, math.nan],
    "seed": [1.5, "1", 2**63, -(2**63)],
    "stop": ["", [""], [5], 5, b"a", ["x"] * 65, ["x" * 1025], {"a": 1}],
    "stop_token_ids": [[-1], ["a"], [1.5], [True], 5, "12", [1] * 65537],
    "min_tokens": [-1, 0.5, None, 17],
    "max_tokens": [0, -1, 2**31, 10**12, 1.0, "16"],
    "ignore_eos": [1, None, "yes"],
    "logprobs": [-1, 21, 2 * 10**9, 1.0, True],
    "prompt_logprobs": [-1, 49152],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1, None],
    "repetition_penalty": [0, -1, 101, math.inf],
    "logit_bias": [{-1: 1.0}, {"a": 1.0}, {1: 101}, {1: math.nan}, {1: "x"}, [1], {True: 1.0}],
    "allowed_token_ids": [[], [-1], ["a"], 5],
    "bad_words": [[""], "word", [5], ["x"] * 1025],
    "logits_processors": [
        ["a"],
        {1: {}},
        {"a": 1},
        {"a": {2: 3}},
        {"a": {"b": object()}},
        {str(i): {} for i in range(17)},
    ],
    "skip_special_tokens": [0],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_D08_a_value_out_of_its_limits_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field.startswith(field)
    assert str(caught.value).startswith(field)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 10**9},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"temperature": 1e-40},
        {"logprobs": 0},
        {"logprobs": 20},
        {"max_tokens": None, "min_tokens": 100},
        {"stop": None},
        {"stop": []},
        {"seed": -5},
        {"n": 1024},
        {"logits_processors": {"a": {}, "b": {"c": [1, None, {"d": 2.5}]}}},
    ],
)
def test_D08_values_at_their_limits_are_taken(fields):
    SamplingParams(**fields)


def test_lists_are_kept_as_tuples():
    params = SamplingParams(stop="a", stop_token_ids=[1], allowed_token_ids=[2], bad_words=["b"])
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids, params.bad_words) == (
        ("a",),
        (1,),
        (2,),
        ("b",),
    )


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": dict.fromkeys(range(2048), 1.0)}, {"stop": ["x" * 1024] * 2}, {"stop_token_ids": [1] * 2048}],
)
def test_E15_long_lists_are_not_copied_without_a_limit(fields):
    SamplingParams(n=MAX_COPIED // 2048, **fields)
    with pytest.raises(
        InvalidParameter, match="n is 513, must be at most 512 where 2048 ids and characters are listed"
    ):
        SamplingParams(n=513, **fields)


def test_E15_arguments_of_logits_processors_are_not_copied_without_a_limit():
    with pytest.raises(InvalidParameter, match="n is 1024, must be at most"):
        SamplingParams(n=1024, logits_processors={"a": {"b": "x" * 2048}})

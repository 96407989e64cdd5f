"""The numpy sampler."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.columns import Floats, floats, ints, pack_ints
from headrace.core.messages import BindRow, KVGroup, RowSampling, RunnerReady, RunStep
from headrace.runners.batch import WorkerState
from headrace.runners.philox import uniforms
from headrace.runners.sampler import Sampled, choose, sample

VOCAB = 49152
SAMPLED = {"temperature": 0.8, "seed": 42}


def params(**changes: Any) -> RowSampling:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, **changes}
    return RowSampling(**values)


def run(logits: Floats, requests: dict[int, RowSampling], token_ids: tuple[int, ...] = (5, 6)) -> Sampled:
    """Sample the rows of `requests`, the logits in the same order, each with these ids so far."""
    state = WorkerState(RunnerReady(logits.shape[1], 64, (KVGroup(1, 9),), 1), max_rows=16, block_size=16)
    bound = tuple(BindRow(row, pack_ints(token_ids), len(token_ids), 0, one) for row, one in requests.items())
    rows = pack_ints(list(requests))
    state.apply(RunStep(1, rows, pack_ints([len(token_ids)] * len(requests)), bound))
    return sample(logits, state, ints(rows))


@pytest.fixture
def logits() -> Floats:
    return (np.random.default_rng(0).standard_normal((4, VOCAB)) * 4).astype(np.float32)


def kept(logits: list[float] | Floats, **changes: Any) -> set[int]:
    """Find which tokens can come out, by trying numbers densely."""
    array = np.array(logits, dtype=np.float32)
    sampling = params(**{"temperature": 1.0, **changes})
    return {choose(array, sampling, number) for number in np.linspace(0, 1, 2001)[:-1].tolist()}


# --- greedy -----------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_highest_logit_and_of_equals_the_lowest_id() -> None:
    logits = np.array([[1, 9, 3, 9], [7, 7, 7, 7], [0, 1, 2, 3]], dtype=np.float32)
    assert run(logits, {3: params(), 0: params(), 7: params()}).token_ids.tolist() == [1, 0, 3]


def test_a_greedy_row_applies_its_adjustments() -> None:
    logits = np.array([[1, 9, 3, 9]], dtype=np.float32)
    assert run(logits, {0: params(logit_bias={2: 7.0})}).token_ids.tolist() == [2]
    assert run(logits, {0: params(bad_words=((1,),))}).token_ids.tolist() == [3]


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-40, 9e-6])
def test_D07_tiny_temperatures_are_greedy(temperature: float, logits: Floats) -> None:
    result = run(logits, {row: params(temperature=temperature, seed=9, logprobs=2) for row in range(4)})
    assert np.array_equal(result.token_ids, logits.argmax(axis=1))
    assert result.logprobs is not None
    assert np.isfinite(floats(result.logprobs.logprobs)).all()


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 1e-4}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_k": 1}, {"top_k": 50, "top_p": 1e-6}],
)
def test_D07_what_keeps_one_token_equals_greedy(changes: dict[str, Any], logits: Floats) -> None:
    result = run(logits, {row: params(**{**SAMPLED, **changes}) for row in range(4)})
    assert np.array_equal(result.token_ids, logits.argmax(axis=1))
    assert not result.failed


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    assert kept([1, 2, 2, 2, 0], top_k=2) == {1, 2}


@pytest.mark.parametrize("top_k", [0, 5, VOCAB, 10**9])
def test_D08_a_top_k_of_0_or_of_the_vocabulary_and_more_keeps_all(top_k: int) -> None:
    assert kept([1, 2, 2, 2, 0], top_k=top_k) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log([0.1, 0.4, 0.3, 0.2])
    assert kept(logits, top_p=0.39) == {1}
    assert kept(logits, top_p=0.41) == {1, 2}
    assert kept(logits, top_p=0.89) == {1, 2, 3}
    assert kept(logits, top_p=0.91) == {0, 1, 2, 3}


def test_top_p_of_equal_tokens_keeps_the_lowest_ids() -> None:
    assert kept([0, 0, 0, 0], top_p=0.5) == {0, 1}


def test_top_p_over_more_tokens_than_it_first_tries() -> None:
    logits = np.zeros(4000, dtype=np.float32)
    sampling = params(temperature=1.0, top_p=0.75)
    assert choose(logits, sampling, 0.0) == 0
    assert choose(logits, sampling, 1 - 2**-53) == 2999


def test_min_p_drops_tokens_below_a_share_of_the_likeliest() -> None:
    logits = np.log([0.5, 0.26, 0.24])
    assert kept(logits, min_p=0.5) == {0, 1}


def test_top_p_counts_what_top_k_and_min_p_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    for others in ({"top_k": 2}, {"min_p": 0.6}):  # 0.4 of 0.7 is 0.571
        assert kept(logits, **others, top_p=0.57) == {0}
        assert kept(logits, **others, top_p=0.58) == {0, 1}


def test_temperature_flattens() -> None:
    logits = np.array([0, 2], dtype=np.float32)
    numbers = np.linspace(0, 1, 10_001)[:-1].tolist()
    share = np.mean([choose(logits, params(temperature=2.0), number) == 1 for number in numbers])
    assert share == pytest.approx(np.e / (1 + np.e), abs=2e-4)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32) | st.just(-np.inf), min_size=1, max_size=700),
    st.floats(0.1, 3.0),
    st.integers(0, 40),
    st.sampled_from([1.0, 0.99, 0.5, 0.05]),
    st.sampled_from([0.0, 0.02, 0.5]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_token_is_never_one_that_was_dropped(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, number: float
) -> None:
    logits = np.array([*values, 1.5], dtype=np.float32)
    token = choose(logits, params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p), number)
    order = np.argsort(-logits, kind="stable").tolist()
    weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    before = weights[weights > weights[token] * (1 + 1e-6)].sum()  # tokens of equal weight are kept together
    assert weights[token] >= min_p * (1 - 1e-5)
    assert weights[token] > 0
    assert not top_k or order.index(token) < top_k
    assert before <= top_p * weights.sum() * (1 + 1e-5)


def test_tokens_come_out_as_often_as_their_probability_says() -> None:
    probabilities = np.array([0.05, 0.4, 0.25, 0.2, 0.1])
    logits = np.log(probabilities).astype(np.float32)
    numbers = uniforms(np.full(20_000, 3, dtype=np.uint64), np.arange(20_000)).tolist()
    counts = np.bincount([choose(logits, params(temperature=1.0), number) for number in numbers], minlength=5)
    assert ((counts - 20_000 * probabilities) ** 2 / (20_000 * probabilities)).sum() < 18.5  # 4 degrees, 1 in 1000


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True), st.integers(0, 2**32))
def test_the_inverse_takes_the_first_token_whose_running_sum_exceeds_the_number(
    size: int, number: float, seed: int
) -> None:
    logits = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    token = choose(logits, params(temperature=1.0), number)
    sums = np.exp(logits.astype(np.float64)).cumsum() / np.exp(logits.astype(np.float64)).sum()
    assert (sums[token - 1] if token else 0) <= number + 1e-5
    assert sums[token] > number - 1e-5


# --- rows and their mates ---------------------------------------------------------------------------------------------


def mixed(vocab: int) -> list[RowSampling]:
    return [
        params(),
        params(**SAMPLED),
        params(temperature=1.0, seed=7, top_p=0.9),
        params(temperature=0.7, seed=-3, top_k=50, top_p=0.95, logprobs=3),
        params(temperature=1.3, seed=1, min_p=0.05, repetition_penalty=1.3),
        params(allowed_ids=(5, vocab - 1), logprobs=0),
        params(temperature=0.9, seed=2, presence_penalty=1.0, bad_words=((6, 7), (9,))),
    ]


def test_D01_a_row_alone_and_among_others_anywhere_gives_the_same_bit_by_bit() -> None:
    everyone = mixed(VOCAB)
    logits = (np.random.default_rng(1).standard_normal((len(everyone), VOCAB)) * 3).astype(np.float32)
    alone = [run(logits[i : i + 1].copy(), {9: one}) for i, one in enumerate(everyone)]
    order = np.random.default_rng(2).permutation(len(everyone)).tolist()
    together = run(logits[order], {row: everyone[i] for row, i in enumerate(order)})
    assert together.token_ids.tolist() == [int(alone[i].token_ids[0]) for i in order]
    entries = [found for i in order if (found := alone[i].logprobs)]
    assert together.logprobs is not None
    assert together.logprobs.logprobs == b"".join(entry.logprobs for entry in entries)
    assert together.logprobs.token_ids == b"".join(entry.token_ids for entry in entries)


def test_logits_are_not_changed(logits: Floats) -> None:
    before = logits.copy()
    run(logits, dict(enumerate(mixed(VOCAB)[3:7])))
    assert np.array_equal(logits, before)


def test_a_number_belongs_to_the_position_of_the_new_token() -> None:
    logits = np.zeros((1, 1000), dtype=np.float32)
    for length in (1, 2, 40):
        token = run(logits, {0: params(temperature=1.0, seed=42)}, token_ids=(5,) * length).token_ids[0]
        assert token == int(uniforms(np.array([42], dtype=np.uint64), [length])[0] * 1000)


def test_logprobs_come_before_any_adjustment() -> None:
    logits = np.array([[0, 5, 1, 2]], dtype=np.float32)
    result = run(logits, {0: params(logprobs=2, allowed_ids=(2,), temperature=0.5, seed=1, top_k=1)})
    assert result.logprobs is not None
    assert ints(result.logprobs.token_ids).tolist() == [2, 1, 3]
    assert ints(result.logprobs.ranks).tolist() == [3]
    assert ints(result.logprobs.positions).tolist() == [2]
    expected = logits[0] - np.log(np.exp(logits[0]).sum())
    assert np.allclose(floats(result.logprobs.logprobs), expected[[2, 1, 3]], atol=1e-6)


def test_D08_logprobs_0_is_the_token_alone_and_none_is_nothing(logits: Floats) -> None:
    result = run(logits[:2], {0: params(logprobs=0), 1: params()})
    assert result.logprobs is not None
    assert ints(result.logprobs.widths).tolist() == [1]
    assert run(logits[:1], {0: params()}).logprobs is None


# --- rows that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda row: row.fill(np.nan), "NaN"),
        (lambda row: row.__setitem__(7, np.nan), "NaN"),
        (lambda row: row.fill(-np.inf), "all minus infinity"),
        (lambda row: row.__setitem__(7, np.inf), "hold infinity"),
    ],
)
@pytest.mark.parametrize("sampling", [params(logprobs=1), params(**SAMPLED, logit_bias={3: 1.0})])
def test_D13_only_the_row_with_bad_logits_fails(
    spoil: Any, problem: str, sampling: RowSampling, logits: Floats
) -> None:
    requests = dict.fromkeys(range(4), sampling)
    whole = run(logits, requests)
    spoil(logits[2])
    result = run(logits, requests)
    assert list(result.failed) == [2]
    assert problem in result.failed[2]
    assert result.rows.tolist() == [0, 1, 3]
    assert result.token_ids.tolist() == whole.token_ids[[0, 1, 3]].tolist()


def test_D06_a_row_whose_tokens_are_all_masked_fails_and_is_never_sampled(logits: Floats) -> None:
    masked = {"allowed_ids": (7042,), "bad_words": ((7042,),)}
    for sampling in (params(**masked), params(**SAMPLED, **masked)):
        result = run(logits[:2], {0: sampling, 1: params()})
        assert result.rows.tolist() == [1]
        assert "allowed_token_ids" in result.failed[0]


def test_minus_infinity_of_some_tokens_is_sound(logits: Floats) -> None:
    logits[:, 100:] = -np.inf
    result = run(logits, {row: params(**SAMPLED, top_p=0.99, logprobs=20) for row in range(4)})
    assert (result.token_ids < 100).all()
    assert not result.failed

"""Masks, bias and penalties of one row."""

from typing import Any

import numpy as np
import pytest

from headrace.core.messages import RowSampling
from headrace.runners.logits import Adjustments

VOCAB = 49152
PROMPT = [38634, 7042, 7042]


def adjust(logits: np.ndarray, output: list[int], prompt: list[int] = PROMPT, **sampling: Any) -> np.ndarray:
    adjustments = Adjustments.of(RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, **sampling))
    assert adjustments is not None
    return adjustments.apply(logits, np.array(prompt + output, dtype=np.int32), len(prompt))


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(VOCAB).astype(np.float32)


def changed(before: np.ndarray, after: np.ndarray) -> list[int]:
    return np.flatnonzero(before != after).tolist()


def test_a_request_without_adjustments_has_none() -> None:
    assert Adjustments.of(RowSampling(0.7, 50, 0.9, 0.1, seed=1, stop_ids=(2,), logprobs=5)) is None


def test_given_logits_stay_as_they_are(logits: np.ndarray) -> None:
    before = logits.copy()
    adjust(logits, [28], repetition_penalty=1.5, allowed_ids=(1, 2), logit_bias={3: 1.0})
    assert np.array_equal(logits, before)


def test_D02_repetition_scales_prompt_and_output_from_the_first_token_on(logits: np.ndarray) -> None:
    logits[38634], logits[7042], logits[28] = 3.0, -2.0, 4.0
    first = adjust(logits, [], repetition_penalty=2.0)
    assert changed(logits, first) == [7042, 38634]
    assert (first[38634], first[7042]) == (1.5, -4.0)
    second = adjust(logits, [28], repetition_penalty=2.0)
    assert changed(logits, second) == [28, 7042, 38634]
    assert (second[38634], second[7042], second[28]) == (1.5, -4.0, 2.0)


def test_D02_presence_touches_only_output(logits: np.ndarray) -> None:
    assert changed(logits, adjust(logits, [], presence_penalty=1.0)) == []
    after = adjust(logits, [28, 28], presence_penalty=1.0)
    assert changed(logits, after) == [28]
    assert after[28] == logits[28] - np.float32(1)


def test_D02_frequency_touches_only_output_by_count(logits: np.ndarray) -> None:
    after = adjust(logits, [28, 5, 28, 28], frequency_penalty=0.5)
    assert changed(logits, after) == [5, 28]
    assert after[28] == logits[28] - np.float32(1.5)
    assert after[5] == logits[5] - np.float32(0.5)


def test_penalties_apply_after_the_bias(logits: np.ndarray) -> None:
    logits[7042] = 1.0
    assert adjust(logits, [], logit_bias={7042: 3.0}, repetition_penalty=2.0)[7042] == 2.0


def test_bias_is_added(logits: np.ndarray) -> None:
    after = adjust(logits, [], logit_bias={3: 5.0, 9: -100.0})
    assert changed(logits, after) == [3, 9]
    assert after[3] == logits[3] + np.float32(5)


def test_only_allowed_ids_are_left(logits: np.ndarray) -> None:
    after = adjust(logits, [], allowed_ids=(7042, 5))
    assert np.flatnonzero(np.isfinite(after)).tolist() == [5, 7042]
    assert after[7042] == logits[7042]


def test_bias_does_not_bring_a_masked_id_back(logits: np.ndarray) -> None:
    assert adjust(logits, [], allowed_ids=(5,), logit_bias={9: 100.0})[9] == -np.inf


@pytest.mark.parametrize(
    ("output", "masked"),
    [([], [8]), ([4], [5, 8]), ([4, 5], [6, 8]), ([4, 1], [8]), ([1, 4], [5, 8]), ([5], [8])],
)
def test_D10_a_phrase_is_masked_only_at_its_last_id(output: list[int], masked: list[int], logits: np.ndarray) -> None:
    after = adjust(logits, output, bad_words=((8,), (4, 5), (4, 5, 6)))
    assert np.flatnonzero(np.isneginf(after)).tolist() == masked


def test_D10_a_phrase_that_the_prompt_began_is_not_masked(logits: np.ndarray) -> None:
    assert np.isfinite(adjust(logits, [], prompt=[4], bad_words=((4, 5),))).all()


def test_stop_ids_are_masked_until_min_tokens(logits: np.ndarray) -> None:
    assert changed(logits, adjust(logits, [9], min_tokens=2, stop_ids=(2, 0))) == [0, 2]
    assert changed(logits, adjust(logits, [9, 9], min_tokens=2, stop_ids=(2, 0))) == []

"""Logits processors in the sampler: what they see, when they act, and whom they fail."""

from typing import Any

import numpy as np
import pytest

from headrace.core.columns import Floats, Ints, ints, pack_ints
from headrace.core.errors import InvalidParameter, RequestFailed
from headrace.core.extensions import LogitsProcessor
from headrace.core.messages import BindRow, KVGroup, RowSampling, RunnerReady, RunStep
from headrace.runners.batch import WorkerState
from headrace.runners.sampler import Sampled, sample

SEEN: list[Any] = []


def build(name: str, arguments: dict[str, Any], vocab_size: int) -> LogitsProcessor:
    if name == "unknown":
        raise InvalidParameter("logits_processors names 'unknown'")
    if name == "broken":
        raise KeyError("row")

    def process(token_ids: Ints, num_prompt: int, logits: Floats) -> Floats | None:
        SEEN.append((name, token_ids.tolist(), num_prompt, logits.tolist()))
        if name == "fail":
            raise RequestFailed("plugin 'mine' raised ValueError: no luck")
        if name == "add":
            logits[arguments["id"]] += np.float32(arguments["bias"])
            return None
        return logits * np.float32(arguments["factor"])

    return process


def params(**changes: Any) -> RowSampling:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, **changes}
    return RowSampling(**values)


def run(requests: list[RowSampling], logits: list[float], token_ids: tuple[int, ...] = (0, 1)) -> Sampled:
    SEEN.clear()
    state = WorkerState(RunnerReady(len(logits), 64, (KVGroup(1, 9),), 1), 8, 16, build)
    bound = tuple(BindRow(row, pack_ints(token_ids), 1, 0, one) for row, one in enumerate(requests))
    rows = pack_ints(range(len(requests)))
    state.apply(RunStep(1, rows, pack_ints([len(token_ids)] * len(requests)), bound))
    return sample(np.array([logits] * len(requests), dtype=np.float32), state, ints(rows))


def test_a_greedy_row_applies_its_processors_and_no_other_row_does() -> None:
    forced = params(logits_processors={"add": {"id": 0, "bias": 9.0}})
    assert run([params(), forced, params()], [1, 3, 2]).token_ids.tolist() == [1, 0, 1]
    assert SEEN == [("add", [0, 1], 1, [1, 3, 2])]


def test_they_act_in_the_order_of_their_names() -> None:
    def token(processors: dict[str, dict[str, Any]]) -> int:
        return int(run([params(logits_processors=processors)], [1, 3, 2]).token_ids[0])

    add, scale = {"add": {"id": 0, "bias": 1.5}}, {"scale": {"factor": 3.0}}
    assert token(add | scale) == 1
    assert SEEN[1][3] == [2.5, 3, 2]
    assert token(scale | add) == 1
    assert SEEN[1][3] == [3, 9, 6]


def test_they_come_after_masks_and_bias_and_before_penalties() -> None:
    request = params(
        logits_processors={"add": {"id": 0, "bias": 5.0}},
        logit_bias={2: 1.0},
        bad_words=((1,),),
        repetition_penalty=10.0,
    )
    assert run([request], [1, 3, 2]).token_ids.tolist() == [2]
    assert SEEN[0][3] == [1, -np.inf, 3]


def test_a_sampled_row_draws_from_what_they_leave() -> None:
    only = {"add": {"id": 2, "bias": 100.0}}
    assert run([params(temperature=1.0, seed=3, logits_processors=only)], [1, 3, 2]).token_ids.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fail", "plugin 'mine' raised ValueError: no luck"),
        ("unknown", "logits_processors names 'unknown'"),
        ("broken", "logits processor 'broken' can't be built: KeyError: 'row'"),
    ],
)
def test_one_that_fails_fails_its_own_row(name: str, reason: str) -> None:
    sampled = run([params(), params(logits_processors={name: {}}), params()], [1, 3, 2])
    assert sampled.failed == {1: reason}
    assert sampled.rows.tolist() == [0, 2]
    assert sampled.token_ids.tolist() == [1, 1]


def test_the_models_logits_stay_as_they_are() -> None:
    sampled = run([params(logprobs=0, logits_processors={"add": {"id": 0, "bias": 50.0}})], [1, 3, 2])
    assert sampled.logprobs is not None
    assert ints(sampled.logprobs.ranks).tolist() == [3]


def test_a_row_that_is_bound_again_leaves_its_processors() -> None:
    state = WorkerState(RunnerReady(3, 64, (KVGroup(1, 9),), 1), 2, 16, build)
    for step, request in enumerate((params(logits_processors={"add": {"id": 0, "bias": 9.0}}), params()), 1):
        state.apply(RunStep(step, pack_ints([1]), pack_ints([2]), (BindRow(1, pack_ints([0, 1]), 2, 0, request),)))
        sampled = sample(np.array([[1, 3, 2]], dtype=np.float32), state, np.array([1], dtype=np.int32))
        assert sampled.token_ids.tolist() == [[0], [1]][step - 1]

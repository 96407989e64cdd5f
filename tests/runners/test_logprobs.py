"""Log probabilities and the likeliest tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.columns import Floats, Ints, floats, ints, pack_ints
from headrace.core.interfaces import Batch
from headrace.core.messages import BindRow, KVGroup, Logprobs, RowSampling, RunnerReady, RunStep
from headrace.runners.batch import WorkerState
from headrace.runners.logprobs import PROMPT_SLICE, LogprobColumns, likeliest, prompt_logprobs

VOCAB = 32


@given(st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 0.5, 7.0]), min_size=1, max_size=300), st.data())
def test_likeliest_are_the_highest_then_the_lowest_ids(values: list[float], data: st.DataObject) -> None:
    num_ids = data.draw(st.integers(1, len(values) + 2))
    expected = sorted((i for i, value in enumerate(values) if value > -np.inf), key=lambda i: (-values[i], i))
    assert likeliest(np.array(values, dtype=np.float32), num_ids).tolist() == expected[:num_ids]


def test_likeliest_of_many_equal_a_full_sort() -> None:
    logits = np.random.default_rng(0).standard_normal(49152).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    for num_ids in (1, 20, 700, 5000, 49152):
        assert np.array_equal(likeliest(logits, num_ids), order[:num_ids])


def report(logits: Floats, token_id: int, num_alternatives: int) -> Logprobs:
    columns = LogprobColumns()
    columns.add(3, 10, logits, token_id, num_alternatives)
    packed = columns.pack()
    assert packed is not None
    return packed


def test_logprobs_are_those_of_a_softmax() -> None:
    logits = np.random.default_rng(0).standard_normal(VOCAB).astype(np.float32) * 5
    exact = logits.astype(np.float64)
    expected = exact - np.log(np.exp(exact).sum())
    entry = report(logits, 4, VOCAB)
    assert np.allclose(floats(entry.logprobs), expected[ints(entry.token_ids)], atol=1e-6)


def test_logprobs_of_huge_logits_are_finite() -> None:
    entry = report(np.array([3e38, 2e38, -3e38], dtype=np.float32) / np.float32(10), 0, 2)
    assert np.isfinite(floats(entry.logprobs)).all()
    assert floats(entry.logprobs)[0] == 0


def test_the_reported_token_comes_first_then_the_best_and_rank_counts_likelier_ones() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0], dtype=np.float32)
    entry = report(logits, 2, 3)
    assert ints(entry.token_ids).tolist() == [2, 1, 3, 2]
    assert ints(entry.widths).tolist() == [4]
    assert ints(entry.ranks).tolist() == [3]
    assert (ints(entry.rows).tolist(), ints(entry.positions).tolist()) == ([3], [10])


def test_D08_no_alternatives_leave_the_token_alone() -> None:
    entry = report(np.zeros(VOCAB, dtype=np.float32), 5, 0)
    assert ints(entry.token_ids).tolist() == [5]
    assert np.allclose(floats(entry.logprobs), -np.log(VOCAB))


def test_no_entries_are_no_message() -> None:
    assert LogprobColumns().pack() is None


# --- prompts ----------------------------------------------------------------------------------------------------------


class PositionModel:
    """Logits depend on the position: the highest is at id (position + 1) % VOCAB. Remembers how many it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.batch: Batch | None = None
        self.bad_position = -1

    def load(self) -> RunnerReady:
        return RunnerReady(VOCAB, 256, (KVGroup(1, 64),), 1)

    def forward(self, batch: Batch) -> None:
        self.batch = batch

    def logits(self, indices: Ints) -> Floats:
        assert self.batch is not None
        self.asked.append(len(indices))
        positions = self.batch.positions[indices]
        logits = np.zeros((len(indices), VOCAB), dtype=np.float32)
        logits[np.arange(len(indices)), (positions + 1) % VOCAB] = 9.0
        logits[positions == self.bad_position, 3] = np.nan
        return logits

    def close(self) -> None:
        self.batch = None


@pytest.fixture
def model() -> PositionModel:
    return PositionModel()


def run_chunks(
    model: PositionModel, prompt: list[int], chunks: list[int], num_ids: int | None = None
) -> list[tuple[Logprobs | None, set[int]]]:
    state = WorkerState(model.load(), 4, 16)
    sampling = RowSampling(0.0, 0, 1.0, 0.0, seed=0, prompt_logprobs=1)
    plain = RowSampling(0.0, 0, 1.0, 0.0, seed=0)
    bound = (
        BindRow(0, pack_ints([1, 2, 3]), 3, 0, plain),
        BindRow(2, pack_ints(prompt), num_ids or len(prompt), 0, sampling),
    )
    results = []
    for number, chunk in enumerate(chunks):
        rows = [0, 2] if number == 0 else [2]
        batch = state.apply(
            RunStep(number + 1, pack_ints(rows), pack_ints([chunk] * len(rows)), () if number else bound)
        )
        model.forward(batch)
        results.append(prompt_logprobs(model, batch, state))
    return results


def test_each_prompt_token_but_the_first_has_one_entry_whatever_the_chunks(model: PositionModel) -> None:
    prompt = [i % VOCAB for i in range(20)]
    for chunks in ([20], [7, 13], [1] * 20):
        found = [entry for entry, _ in run_chunks(model, prompt, chunks) if entry]
        assert [p for entry in found for p in ints(entry.positions).tolist()] == list(range(1, 20))
        assert {rank for entry in found for rank in ints(entry.ranks).tolist()} == {1}
        assert {row for entry in found for row in ints(entry.rows).tolist()} == {2}


def test_ids_after_the_prompt_have_no_entry(model: PositionModel) -> None:
    ((entry, _),) = run_chunks(model, list(range(10)), [10], num_ids=6)
    assert entry is not None
    assert ints(entry.positions).tolist() == [1, 2, 3, 4, 5]


def test_logits_are_asked_for_in_slices(model: PositionModel) -> None:
    run_chunks(model, [5] * (PROMPT_SLICE + 2), [PROMPT_SLICE + 2])
    assert model.asked == [PROMPT_SLICE, 1]


def test_D13_a_prompt_whose_logits_hold_NaN_is_named(model: PositionModel) -> None:
    model.bad_position = 7
    ((_, failed),) = run_chunks(model, [5] * 20, [20])
    assert failed == {2}

"""The persistent batch."""

from typing import Any

import numpy as np
import pytest

from headrace.core.columns import pack_ints
from headrace.core.messages import BindRow, KVGroup, RowSampling, RunnerReady, RunStep
from headrace.runners.batch import NO_LOGPROBS, WorkerState

BLOCK_SIZE = 4


@pytest.fixture
def state() -> WorkerState:
    return WorkerState(RunnerReady(100, 40, (KVGroup(1, 30), KVGroup(1, 30)), 1), max_rows=6, block_size=BLOCK_SIZE)


def bind(row: int, token_ids: list[int], num_computed: int = 0, **sampling: Any) -> BindRow:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, **sampling}
    return BindRow(row, pack_ints(token_ids), len(token_ids), num_computed, RowSampling(**values))


def step(
    counts: dict[int, int], *bound: BindRow, tables: list[tuple[int, ...]] | None = None, reset: bool = False
) -> RunStep:
    changes = np.array(tables or [], dtype=np.int32).tobytes()
    return RunStep(1, pack_ints(list(counts)), pack_ints(list(counts.values())), bound, changes, reset)


def test_a_step_becomes_a_flat_batch_in_its_order(state: WorkerState) -> None:
    tables = [(0, 4, 0, 7), (0, 4, 1, 8), (1, 4, 0, 17), (1, 4, 1, 18), (0, 1, 1, 3), (1, 1, 1, 13)]
    prompt = bind(4, [50, 51, 52, 53, 54, 55])
    batch = state.apply(step({4: 5, 1: 1}, prompt, bind(1, [10, 11, 12, 13, 14, 15], num_computed=5), tables=tables))
    assert batch.rows.tolist() == [4, 1]
    assert batch.token_ids.tolist() == [50, 51, 52, 53, 54, 15]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.starts.tolist() == [0, 5, 6]
    assert batch.context_lens.tolist() == [5, 6]
    assert [slots.tolist() for slots in batch.slots] == [[28, 29, 30, 31, 32, 13], [68, 69, 70, 71, 72, 53]]
    assert [table.tolist() for table in batch.tables] == [[[7, 8], [0, 3]], [[17, 18], [0, 13]]]
    assert batch.samples.tolist() == [1]


def test_columns_have_the_types_of_the_contract(state: WorkerState) -> None:
    batch = state.apply(step({0: 2}, bind(0, [1, 2])))
    columns = [batch.rows, batch.token_ids, batch.positions, batch.starts, batch.context_lens, batch.samples]
    assert {column.dtype for column in columns + list(batch.tables)} == {np.dtype(np.int32)}
    assert {slots.dtype for slots in batch.slots} == {np.dtype(np.int64)}


def test_a_row_goes_on_where_its_last_step_ended(state: WorkerState) -> None:
    state.apply(step({0: 3}, bind(0, [1, 2, 3, 4, 5])))
    batch = state.apply(step({0: 2}))
    assert (batch.token_ids.tolist(), batch.positions.tolist(), batch.samples.tolist()) == ([4, 5], [3, 4], [0])


def test_a_sampled_token_is_the_next_one_computed(state: WorkerState) -> None:
    batch = state.apply(step({0: 2, 3: 1}, bind(0, [1, 2]), bind(3, [7])))
    state.append(batch.rows[batch.samples], np.array([20, 21], dtype=np.int32))
    batch = state.apply(step({3: 1, 0: 1}))
    assert (batch.token_ids.tolist(), batch.positions.tolist()) == ([21, 20], [1, 2])


def test_a_row_gives_what_it_has_when_more_is_asked(state: WorkerState) -> None:
    batch = state.apply(step({0: 9, 1: 1}, bind(0, [1, 2]), bind(1, [5])))
    assert (batch.starts.tolist(), batch.samples.tolist()) == ([0, 2, 3], [0, 1])


def test_a_row_that_has_nothing_is_left_out(state: WorkerState) -> None:
    state.apply(step({0: 2, 1: 1}, bind(0, [1, 2]), bind(1, [5, 6])))  # nothing is appended to row 0
    batch = state.apply(step({0: 1, 1: 1}))
    assert (batch.rows.tolist(), batch.token_ids.tolist(), batch.samples.tolist()) == ([1], [6], [0])
    assert len(state.apply(step({0: 1})).rows) == 0


def test_a_failed_row_has_nothing_more_to_compute(state: WorkerState) -> None:
    state.apply(step({0: 2}, bind(0, [1, 2, 3, 4])))
    state.fail(0)
    assert len(state.apply(step({0: 2})).rows) == 0
    assert state.apply(step({0: 2}, bind(0, [8, 9]))).token_ids.tolist() == [8, 9]


def test_D03_binding_voids_all_earlier_state_of_the_row(state: WorkerState) -> None:
    fresh = WorkerState(RunnerReady(100, 40, (KVGroup(1, 30), KVGroup(1, 30)), 1), 6, BLOCK_SIZE)
    full = bind(
        2, [1, 2, 3], temperature=0.9, seed=5, presence_penalty=1.0, allowed_ids=(7,), logprobs=3, prompt_logprobs=2,
        bad_words=((4,),), min_tokens=3, stop_ids=(2,), logit_bias={1: 2.0},
    )  # fmt: skip
    state.apply(step({2: 3}, full, tables=[(0, 2, 0, 5), (1, 2, 0, 6), (0, 2, 9, 7)]))
    plain = bind(2, [8, 9])
    for each in (state, fresh):
        each.apply(step({2: 1}, plain))
    assert state.sampling[2] == fresh.sampling[2]
    assert state.adjustments[2] is None
    assert state.num_logprobs[2] == state.num_prompt_logprobs[2] == NO_LOGPROBS
    for name in ("num_ids", "num_computed", "num_prompt", "seeds", "is_plain", "tables"):
        assert np.array_equal(getattr(state, name), getattr(fresh, name)), name


def test_table_changes_are_applied_in_order_after_binding(state: WorkerState) -> None:
    state.apply(step({0: 1}, bind(0, [1, 2]), tables=[(0, 0, 0, 5), (0, 0, 0, 9)]))
    assert state.tables[0, 0, 0] == 9


def test_reset_forgets_all_rows_before_binding(state: WorkerState) -> None:
    state.apply(step({0: 1, 1: 1}, bind(0, [1, 2]), bind(1, [3, 4]), tables=[(0, 0, 0, 5)]))
    batch = state.apply(step({0: 1, 1: 1}, bind(1, [6, 7]), reset=True))
    assert (batch.rows.tolist(), batch.token_ids.tolist()) == ([1], [6])
    assert not state.tables.any()


def test_the_longest_sequence_fits_with_the_token_sampled_at_its_end(state: WorkerState) -> None:
    batch = state.apply(step({0: 40}, bind(0, list(range(40)))))
    state.append(batch.rows, np.array([99], dtype=np.int32))
    assert state.token_ids[0, 40] == 99


def test_plain_rows_are_greedy_without_adjustments(state: WorkerState) -> None:
    bound = [
        bind(0, [1]),
        bind(1, [1], temperature=0.5),
        bind(2, [1], min_tokens=2, stop_ids=(3,)),
        bind(3, [1], logprobs=1),
    ]
    state.apply(step({0: 1}, *bound))
    assert state.is_plain[:4].tolist() == [True, False, False, True]


def test_mark_finds_rows_among_others_in_their_order(state: WorkerState) -> None:
    among, rows = np.array([4, 0, 2], dtype=np.int32), np.array([2, 4], dtype=np.int32)
    assert state.count(among, rows).tolist() == [1, 0, 1]

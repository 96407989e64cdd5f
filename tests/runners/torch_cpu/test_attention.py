"""How a batch is cut for attention: slots of contexts and windows, groups of rows."""

import numpy as np

from headrace.runners.torch_cpu.attention import context_slots, similar_lengths


def test_slots_of_a_context_follow_its_block_table() -> None:
    table = np.array([[7, 3, 0], [2, 9, 5]], dtype=np.int32)
    found = context_slots(table, np.array([3, 9], dtype=np.int32), block_size=4)
    assert found.dtype == np.int64
    assert found.tolist() == [[28, 29, 30, 0, 0, 0, 0, 0, 0], [8, 9, 10, 11, 36, 37, 38, 39, 20]]


def test_rows_are_grouped_with_those_at_most_twice_as_long() -> None:
    lengths = np.array([300, 8000, 3, 600, 256, 513, 4100], dtype=np.int32)
    groups = similar_lengths(np.array([0, 1, 2, 3, 4, 5, 6], dtype=np.int32), lengths)
    assert [group.tolist() for group in groups] == [[2, 4], [0], [5, 3], [6, 1]]


def test_groups_are_cut_where_they_would_copy_too_much() -> None:
    groups = similar_lengths(np.arange(40, dtype=np.int32), np.full(40, 8192, dtype=np.int32))
    assert [len(group) for group in groups] == [8] * 5
    assert np.concatenate(groups).tolist() == list(range(40))


def test_slots_of_a_window_are_the_last_of_the_context() -> None:
    table = np.array([[7, 3, 0], [2, 9, 5]], dtype=np.int32)
    found = context_slots(table, np.array([3, 9], dtype=np.int32), block_size=4, seen=4)
    assert found.tolist() == [[28, 29, 30, 0], [37, 38, 39, 20]]

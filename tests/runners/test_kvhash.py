"""Runner kvhash: whatever is wrong with blocks or positions must show."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.core.columns import pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Batch
from headrace.core.messages import BindRow, RowSampling, RunStep
from headrace.runners.batch import WorkerState
from headrace.runners.kvhash import KVHashModel, KVHashOptions, next_logits, reference

CONFIG = EngineConfig(max_model_len=64, block_size=4, num_kv_blocks=40)
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
BLOCKS = [[7, 30, 2], [11, 12, 13]]
"""By group."""

Change = Callable[[Batch], Batch]


def last_logits(change: Change = lambda batch: batch, num_groups: int = 1, windows: tuple[int, ...] = ()) -> np.ndarray:
    """Compute IDS as one row at BLOCKS, by a batch to which `change` was done; return the last token's logits."""
    model = KVHashModel(CONFIG, KVHashOptions(num_groups=num_groups, windows=windows))
    state = WorkerState(model.load(), max_rows=2, block_size=4)
    bind = BindRow(1, pack_ints(IDS), len(IDS), 0, RowSampling(0.0, 0, 1.0, 0.0, 0))
    tables = [(group, 1, i, block) for group in range(num_groups) for i, block in enumerate(BLOCKS[group])]
    step = RunStep(1, pack_ints([1]), pack_ints([len(IDS)]), (bind,), np.array(tables, dtype=np.int32).tobytes())
    model.forward(change(state.apply(step)))
    logits: np.ndarray = model.logits(np.array([len(IDS) - 1], dtype=np.int32))[0]
    return logits


def with_table(group: int, *blocks: int) -> Change:
    def change(batch: Batch) -> Batch:
        tables = list(batch.tables)
        tables[group] = np.array([blocks], dtype=np.int32)
        return replace(batch, tables=tables)

    return change


def with_slot(at: int, slot: int) -> Change:
    def change(batch: Batch) -> Batch:
        slots = batch.slots[0].copy()
        slots[at] = slot
        return replace(batch, slots=[slots])

    return change


def with_positions(first: int) -> Change:
    return lambda batch: replace(batch, positions=batch.positions + np.arange(10, dtype=np.int32)[::-1] * first)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_right_tables_give_the_reference(num_groups: int) -> None:
    assert np.array_equal(last_logits(num_groups=num_groups), next_logits(IDS, num_groups=num_groups))


@pytest.mark.parametrize("blocks", [(7, 30, 3), (30, 7, 2), (7, 7, 2), (0, 30, 2)])
def test_a_wrong_swapped_doubled_or_null_block_changes_the_output(blocks: tuple[int, ...]) -> None:
    assert last_logits(with_table(0, *blocks)).argmax() != next_logits(IDS).argmax()


def test_a_wrong_block_of_any_group_changes_the_output() -> None:
    right = last_logits(num_groups=2).argmax()
    for group in (0, 1):
        first, second, third = BLOCKS[group]
        assert last_logits(with_table(group, second, first, third), num_groups=2).argmax() != right


def test_a_token_written_elsewhere_changes_the_output() -> None:
    assert last_logits(with_slot(3, 4 * 20)).argmax() != next_logits(IDS).argmax()


def test_a_wrong_position_changes_the_output() -> None:
    assert last_logits(with_positions(1)).argmax() != next_logits(IDS).argmax()


def test_groups_are_not_the_same() -> None:
    assert not np.array_equal(next_logits(IDS, num_groups=1), next_logits(IDS, num_groups=2))


def test_a_token_without_a_block_is_an_error() -> None:
    with pytest.raises(IndexError, match="null block"):
        last_logits(with_slot(3, 2))


def test_a_window_is_what_the_last_token_sees_in_its_group() -> None:
    windows = (5, 0)
    expected = next_logits(IDS, num_groups=2, windows=windows)
    assert np.array_equal(last_logits(num_groups=2, windows=windows), expected)
    assert np.array_equal(last_logits(with_table(0, 0, 30, 2), num_groups=2, windows=windows), expected)
    for wrong in (with_table(0, 7, 0, 2), with_table(1, 0, 12, 13)):
        assert not np.array_equal(last_logits(wrong, num_groups=2, windows=windows), expected)
    assert np.array_equal(next_logits(IDS, windows=(99,)), next_logits(IDS))


def test_each_token_of_a_batch_has_a_window_of_its_own() -> None:
    model = KVHashModel(CONFIG, KVHashOptions(windows=(3,)))
    state = WorkerState(model.load(), max_rows=2, block_size=4)
    bind = BindRow(1, pack_ints(IDS), len(IDS), 0, RowSampling(0.0, 0, 1.0, 0.0, 0))
    tables = np.array([(0, 1, i, block) for i, block in enumerate(BLOCKS[0])], dtype=np.int32).tobytes()
    model.forward(state.apply(RunStep(1, pack_ints([1]), pack_ints([len(IDS)]), (bind,), tables)))
    logits = model.logits(np.arange(len(IDS), dtype=np.int32))
    for end in range(1, len(IDS) + 1):
        assert np.array_equal(logits[end - 1], next_logits(IDS[:end], windows=(3,)))


@pytest.mark.parametrize("windows", [(), (4,), (1, 0), (0, 16)])
def test_reference_is_the_greedy_continuation(windows: tuple[int, ...]) -> None:
    ids, options = list(IDS), {"num_groups": 2, "windows": windows}
    for _ in range(30):
        ids.append(int(next_logits(ids, **options).argmax()))
    assert reference(IDS, 30, **options) == ids[10:]


def test_tokens_are_spread_over_the_vocabulary() -> None:
    tokens = reference([1], 2000)
    assert len(set(tokens)) > 450
    assert max(tokens) < 512


@pytest.mark.parametrize("options", [{"vocab_size": 1}, {"num_groups": 0}, {"windows": (1, 2)}, {"windows": (-1,)}])
def test_options_out_of_their_limits_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        KVHashOptions(**options)

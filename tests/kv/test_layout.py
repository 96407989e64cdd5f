"""Arithmetic of kv/layout.py."""

import numpy as np
import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.messages import KVGroup
from headrace.kv.layout import (
    StepLimits,
    blocks_for,
    bytes_per_block,
    choose_num_blocks,
    group_layers,
    memory_of,
    parse_memory,
    row_blocks,
    slot_mapping,
    window_blocks,
)

GIB = 2**30


@pytest.mark.parametrize(("num_tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_a_started_block_counts_whole(num_tokens: int, blocks: int) -> None:
    assert blocks_for(num_tokens, 16) == blocks


def test_a_slot_is_block_times_size_plus_offset() -> None:
    tables = np.array([[7, 3, 0], [5, 0, 0]], np.int32)
    rows = np.array([0, 0, 0, 1], np.int32)
    positions = np.array([0, 3, 4, 2], np.int32)
    slots = slot_mapping(tables, rows, positions, block_size=4)
    assert slots.dtype == np.int64
    assert slots.tolist() == [28, 31, 12, 22]


def test_slots_beyond_int32_stay_exact() -> None:
    tables = np.array([[2**31 - 1]], np.int32)
    zero = np.zeros(1, np.int32)
    assert slot_mapping(tables, zero, zero + 5, block_size=16).tolist() == [(2**31 - 1) * 16 + 5]


def test_bytes_of_smollm2_are_46080_a_token() -> None:
    assert bytes_per_block(num_layers=30, num_kv_heads=3, head_dim=64, itemsize=4, block_size=1) == 46080


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * GIB),
        ("512MB", 512_000_000),
        ("1.5 gib", 3 * GIB // 2),
        ("100KB", 100_000),
        ("64B", 64),
        ("4096", 4096),
        ("25%", 2 * GIB),
        ("100%", 8 * GIB),
    ],
)
def test_memory_is_a_size_or_a_share(text: str, size: int) -> None:
    assert parse_memory(text, total_bytes=8 * GIB) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 GiBs", "-1GiB", "0", "0%", "101%", "9GiB", "nan%", "1e3", "٣GiB"])
def test_a_bad_memory_size_names_field_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_memory") as caught:
        parse_memory(text, total_bytes=8 * GIB)
    assert repr(text) in str(caught.value)


def choose(
    config: EngineConfig, *windows: int | None, memory: tuple[int, int] = (GIB, GIB), length: int = 64
) -> list[int]:
    """Choose the blocks of groups of one layer each, whose blocks have 100 bytes."""
    groups = [KVGroup(1, 0, window) for window in windows or (None,)]
    chosen = choose_num_blocks(config, length, groups, 100, *memory)
    assert [group.window for group in chosen] == [group.window for group in groups]
    return [group.num_blocks for group in chosen]


def test_the_null_block_takes_its_share_of_memory() -> None:
    assert choose(EngineConfig(kv_cache_memory="1000")) == [9]


def test_memory_for_less_than_one_block_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(ConfigError, match="at least 200 bytes"):
        choose(EngineConfig(kv_cache_memory="199"))
    with pytest.raises(ConfigError, match="at least 400 bytes"):
        choose(EngineConfig(kv_cache_memory="399"), None, 32)


def test_a_number_of_blocks_wins_over_memory() -> None:
    assert choose(EngineConfig(num_kv_blocks=5, kv_cache_memory="1GiB")) == [5]


def test_a_share_is_of_the_whole_memory() -> None:
    assert choose(EngineConfig(kv_cache_memory="50%"), memory=(20_000, 100)) == [99]


def test_the_default_holds_all_sequences_but_leaves_three_quarters_free() -> None:
    config = EngineConfig(max_num_seqs=4, block_size=16)
    assert choose(config) == [4 * 5]
    assert choose(config, memory=(GIB, 4000)) == [9]


# --- groups with a window ---

THRIFTY = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 16}


def test_a_row_holds_what_it_sees_and_a_chunk() -> None:
    assert window_blocks(33, StepLimits(max_chunk=64), 16) == 2 + 4 + 1
    assert window_blocks(1, StepLimits(max_chunk=1), 16) == 0 + 1 + 1
    assert window_blocks(33, StepLimits(max_chunk=64, max_rejected=5), 16) == 2 + 1 + 4 + 1
    config = EngineConfig(**THRIFTY)
    assert [row_blocks(window, 1000, config) for window in (None, 33, 2000)] == [63, 7, 63]
    assert row_blocks(33, 40, config) == 3


def test_limits_of_a_step_are_those_of_the_config() -> None:
    assert StepLimits.of(EngineConfig(**THRIFTY)) == (64, 0)
    assert StepLimits.of(EngineConfig(**THRIFTY, max_prefill_chunk=9)) == (9, 0)


def test_a_window_needs_no_more_blocks_than_all_rows_can_hold_and_full_attention_gets_the_rest() -> None:
    config = EngineConfig(**THRIFTY)
    assert choose(config, None, 33, length=200) == [4 * 13, 4 * 7]
    assert choose(config, 33, length=200) == [4 * 7]
    with_memory = EngineConfig(**THRIFTY, kv_cache_memory="10000")
    assert choose(with_memory, None, 33, length=200) == [98 - 28, 28]
    assert choose(EngineConfig(**THRIFTY, num_kv_blocks=40), None, 33, length=200) == [40, 28]


def test_where_memory_is_short_all_groups_get_the_same() -> None:
    assert choose(EngineConfig(**THRIFTY, kv_cache_memory="2000"), None, 33, length=200) == [9, 9]
    assert choose(EngineConfig(**THRIFTY, num_kv_blocks=5), None, 33, length=200) == [5, 5]


def test_a_group_with_a_window_holds_one_longest_request_whole() -> None:
    config = EngineConfig(**{**THRIFTY, "max_num_seqs": 1})
    assert choose(config, None, 33, length=1000) == [63, 63]


def test_layers_of_one_window_are_a_group_and_full_attention_comes_first() -> None:
    found = group_layers([32, 32, None, 16, 32], max_model_len=64)
    assert found.groups == (KVGroup(1, 0, None), KVGroup(1, 0, 16), KVGroup(3, 0, 32))
    assert found.of_layer == (2, 2, 0, 1, 2)


def test_a_window_that_no_sequence_outgrows_is_full_attention() -> None:
    assert group_layers([64, None, 63], max_model_len=64).of_layer == (0, 0, 1)


def test_memory_counts_the_null_block_of_each_group() -> None:
    assert memory_of([KVGroup(2, 9), KVGroup(3, 4, 16)], 100) == (2 * 10 + 3 * 5) * 100

"""Arithmetic of kv/layout.py."""

import numpy as np
import pytest

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.kv.layout import blocks_for, blocks_in, bytes_per_block, choose_num_blocks, parse_memory, slot_mapping

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


def test_the_null_block_takes_its_share_of_memory() -> None:
    assert blocks_in(1000, 100) == 9


def test_memory_for_less_than_one_block_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(ConfigError, match="at least 200 bytes"):
        blocks_in(199, 100)


def test_a_number_of_blocks_wins_over_memory() -> None:
    config = EngineConfig(num_kv_blocks=5, kv_cache_memory="1GiB")
    assert choose_num_blocks(config, 64, 100, GIB, GIB) == 5


def test_a_share_is_of_the_whole_memory() -> None:
    config = EngineConfig(kv_cache_memory="50%")
    assert choose_num_blocks(config, 64, 100, total_bytes=20_000, free_bytes=100) == 99


def test_the_default_holds_all_sequences_but_leaves_three_quarters_free() -> None:
    config = EngineConfig(max_num_seqs=4, block_size=16)
    assert choose_num_blocks(config, 64, 100, GIB, GIB) == 4 * 5
    assert choose_num_blocks(config, 64, 100, GIB, free_bytes=4000) == 9

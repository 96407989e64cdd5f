"""Arithmetic of paged K/V that managers and runners share: tokens to blocks, blocks to slots, memory to blocks.

No state. Block 0 is the null block: never allocated, padding for everything; usable ids are 1 to num_blocks, so that
storage has num_blocks + 1 blocks.
"""

import re

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError

NULL_BLOCK = 0

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*|%)", re.IGNORECASE | re.ASCII)


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Count the blocks that hold so many tokens."""
    return -(-num_tokens // block_size)


def slot_mapping(tables: Ints, rows: Ints, positions: Ints, block_size: int) -> NDArray[np.int64]:
    """Map each token of a batch to its place in the K/V storage.

    tables:    (num_rows, max_blocks) int32, block ids of one KV group.
    rows:      (num_tokens,) int32, each token's row in `tables`.
    positions: (num_tokens,) int32, position of each token in its own sequence.
    Returns (num_tokens,) int64, block id * block_size + offset. Changes nothing.
    Source: PagedAttention, Kwon et al. 2023, section 4.
    """
    blocks = tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size


def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int, itemsize: int, block_size: int) -> int:
    """Count the bytes of K and V of one block over all layers; `itemsize` is the bytes of one number."""
    return 2 * num_layers * num_kv_heads * head_dim * itemsize * block_size


def parse_memory(text: str, total_bytes: int) -> int:
    """Read engine.kv_cache_memory: a size ("2GiB", "512MB", "1000000") or a share of `total_bytes` ("30%"), in bytes.

    Raises ConfigError if it is neither, nothing, or more than the machine has.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None or match[2].lower() not in {*_UNITS, "%"}:
        raise _bad_memory(text, 'must be a size such as "2GiB" or "512MB", or a share such as "30%"')
    scale = total_bytes / 100 if match[2] == "%" else _UNITS[match[2].lower()]
    size = int(float(match[1]) * scale)
    if size < 1:
        raise _bad_memory(text, "must be more than nothing")
    if size > total_bytes:
        raise _bad_memory(text, f"is more than the {total_bytes} bytes of this machine")
    return size


def blocks_in(memory_bytes: int, block_bytes: int) -> int:
    """Count the usable blocks that fit in so much memory beside the null block.

    block_bytes: bytes of one block over all layers. Raises ConfigError if not one fits.
    """
    num_blocks = memory_bytes // block_bytes - 1
    if num_blocks < 1:
        raise ConfigError(
            f"{memory_bytes} bytes for K/V hold no block of {block_bytes} bytes beside the null block: "
            f"set engine.kv_cache_memory to at least {2 * block_bytes} bytes, or lower engine.block_size"
        )
    return num_blocks


def choose_num_blocks(
    config: EngineConfig, max_model_len: int, block_bytes: int, total_bytes: int, free_bytes: int
) -> int:
    """Decide how many usable blocks the pool has, as engine.num_kv_blocks or engine.kv_cache_memory say.

    Without either: what max_num_seqs sequences of max_model_len tokens need, at most a quarter of `free_bytes`.
    total_bytes, free_bytes: memory of the device, and what of it is free now. Raises ConfigError.
    """
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    if config.kv_cache_memory is not None:
        return blocks_in(parse_memory(config.kv_cache_memory, total_bytes), block_bytes)
    wanted = config.max_num_seqs * blocks_for(max_model_len + 1, config.block_size)
    return min(wanted, blocks_in(free_bytes // 4, block_bytes))


def _bad_memory(text: str, problem: str) -> ConfigError:
    return ConfigError(f"engine.kv_cache_memory is {text!r}, {problem}")

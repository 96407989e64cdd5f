"""Arithmetic of paged K/V that managers and runners share: tokens to blocks, blocks to slots, memory to blocks.

No state. Block 0 is the null block: never allocated, padding for everything; usable ids are 1 to num_blocks, so that
storage has num_blocks + 1 blocks.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.core.columns import Ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.messages import KVGroup

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


class StepLimits(NamedTuple):
    """What one step can do to a row."""

    max_chunk: int
    """Most tokens it computes."""
    max_rejected: int = 0
    """Most tokens by which a row's next step may begin before the end of those scheduled: rejected drafts."""

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read them from the config."""
        drafts = config.num_speculative_tokens
        chunk = min(config.max_num_batched_tokens, config.max_prefill_chunk or config.max_num_batched_tokens)
        return cls(max(chunk, 1 + drafts), drafts * (2 if config.async_scheduling else 1))


def window_blocks(window: int, limits: StepLimits, block_size: int) -> int:
    """Count the blocks that a row holds at most in a group with this window: those it sees, and those of a chunk."""
    parts = (window - 1, limits.max_rejected, limits.max_chunk)
    return 1 + sum(blocks_for(num_tokens, block_size) for num_tokens in parts)


def row_blocks(window: int | None, num_tokens: int, config: EngineConfig) -> int:
    """Count the blocks that a row of so many tokens holds at most in a group with this window, or without one."""
    most = blocks_for(num_tokens, config.block_size)
    return most if window is None else min(most, window_blocks(window, StepLimits.of(config), config.block_size))


class LayerGroups(NamedTuple):
    """The KV groups of a model's layers."""

    groups: tuple[KVGroup, ...]
    of_layer: tuple[int, ...]
    """By layer, index of its group."""


def group_layers(windows: Sequence[int | None], max_model_len: int) -> LayerGroups:
    """Put layers of the same window into a group, which has no blocks yet; full attention comes first.

    windows: of each layer, in tokens. One that no sequence outgrows is full attention.
    """
    seen = [None if window is None or window >= max_model_len else window for window in windows]
    kinds = sorted(set(seen), key=lambda window: window or 0)
    groups = tuple(KVGroup(seen.count(window), 0, window) for window in kinds)
    return LayerGroups(groups, tuple(kinds.index(window) for window in seen))


def choose_num_blocks(
    config: EngineConfig,
    max_model_len: int,
    groups: Sequence[KVGroup],
    layer_bytes: int,
    total_bytes: int,
    free_bytes: int,
) -> tuple[KVGroup, ...]:
    """Give each group its number of usable blocks, as engine.num_kv_blocks or engine.kv_cache_memory say.

    All groups get the same number, but one with a window no more than max_num_seqs sequences need (and enough for one
    of max_model_len tokens even where its blocks aren't given back). Without either option: what max_num_seqs sequences
    of max_model_len tokens need, at most a quarter of `free_bytes`.
    layer_bytes: K and V of one block in one layer. total_bytes, free_bytes: memory of the device, and what of it is
    free now. Raises ConfigError.
    """
    bounds = [_most_useful(group.window, max_model_len, config) for group in groups]

    def sized(most: int) -> tuple[KVGroup, ...]:
        counts = [most if bound is None else min(most, bound) for bound in bounds]
        return tuple(replace(group, num_blocks=count) for group, count in zip(groups, counts, strict=True))

    if config.num_kv_blocks is not None:
        return sized(config.num_kv_blocks)
    memory, most = free_bytes // 4, config.max_num_seqs * blocks_for(max_model_len + 1, config.block_size)
    if config.kv_cache_memory is not None:
        memory = parse_memory(config.kv_cache_memory, total_bytes)
        most = memory // layer_bytes
    found = bisect_right(range(1, most + 1), memory, key=lambda count: memory_of(sized(count), layer_bytes))
    if not found:
        raise _too_little_memory(memory, memory_of(sized(1), layer_bytes))
    return sized(found)


def memory_of(groups: Sequence[KVGroup], layer_bytes: int) -> int:
    """Count the bytes of all K and V, null blocks included; layer_bytes: those of one block in one layer."""
    return sum((group.num_blocks + 1) * group.num_layers * layer_bytes for group in groups)


def _most_useful(window: int | None, max_model_len: int, config: EngineConfig) -> int | None:
    if window is None:
        return None
    longest = blocks_for(max_model_len + 1, config.block_size)
    return max(longest, config.max_num_seqs * row_blocks(window, max_model_len + 1, config))


def _too_little_memory(memory: int, least: int) -> ConfigError:
    return ConfigError(
        f"{memory} bytes for K/V hold no block of {least // 2} bytes beside the null block: "
        f"set engine.kv_cache_memory to at least {least} bytes, or lower engine.block_size"
    )


def _bad_memory(text: str, problem: str) -> ConfigError:
    return ConfigError(f"engine.kv_cache_memory is {text!r}, {problem}")

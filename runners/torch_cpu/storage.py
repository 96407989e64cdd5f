"""K/V storage: one pair of paged tensors per layer, read and written by slot."""

import torch
from torch import Tensor

from headrace.core.errors import ConfigError
from headrace.runners.loading.allocation import zero_tensor
from headrace.runners.models.contract import ModelConfig


class KVStorage:
    """Keys and values of all blocks. Owner: the thread that runs the model.

    keys, values: per layer (num_blocks + 1, block_size, num_kv_heads, head_dim). Block 0 stays zero: it is what padding
    reads, since a zero weight times what an earlier request left behind is no zero if that was infinite.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        shape = (num_blocks + 1, block_size, config.num_kv_heads, config.head_dim)
        try:
            self.keys = [zero_tensor(shape, dtype) for _ in range(config.num_layers)]
            self.values = [zero_tensor(shape, dtype) for _ in range(config.num_layers)]
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"K/V of {num_blocks} blocks don't fit in memory ({error}):"
                " lower engine.num_kv_blocks or engine.kv_cache_memory"
            ) from error

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store (T, num_kv_heads, head_dim) keys and values at (T,) int64 slots."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copy keys and values at (n,) int64 slots, each (n, num_kv_heads, head_dim)."""
        keys = self.keys[layer].flatten(0, 1).index_select(0, slots)
        return keys, self.values[layer].flatten(0, 1).index_select(0, slots)

"""K/V storage: one pair of paged tensors per layer, read and written by slot."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.core.errors import ConfigError
from headrace.kv.layout import LayerGroups
from headrace.runners.loading.allocation import zero_tensor
from headrace.runners.models.contract import ModelConfig


class KVStorage:
    """Keys and values of all blocks. Owner: the thread that runs the model.

    keys, values: per layer (num_blocks + 1, block_size, num_kv_heads, head_dim), with the blocks of the layer's group.
    Block 0 stays zero: it is what padding reads, since a zero weight times what an earlier request left behind is no
    zero if that was infinite.
    """

    def __init__(self, config: ModelConfig, layout: LayerGroups, block_size: int, dtype: torch.dtype) -> None:
        self.group_of_layer = layout.of_layer
        counts = [layout.groups[group].num_blocks for group in layout.of_layer]
        shapes = [(count + 1, block_size, config.num_kv_heads, config.head_dim) for count in counts]
        try:
            self.keys = [zero_tensor(shape, dtype) for shape in shapes]
            self.values = [zero_tensor(shape, dtype) for shape in shapes]
        except (MemoryError, ValueError) as error:
            raise ConfigError(
                f"K/V of {max(counts)} blocks don't fit in memory ({error}):"
                " lower engine.num_kv_blocks or engine.kv_cache_memory"
            ) from error

    def write(self, layer: int, slots: Sequence[Tensor], keys: Tensor, values: Tensor) -> None:
        """Store (T, num_kv_heads, head_dim) keys and values at their slots; slots: (T,) int64 of each group."""
        own = slots[self.group_of_layer[layer]]
        self.keys[layer].flatten(0, 1).index_copy_(0, own, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, own, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copy keys and values at (n,) int64 slots, each (n, num_kv_heads, head_dim)."""
        keys = self.keys[layer].flatten(0, 1).index_select(0, slots)
        return keys, self.values[layer].flatten(0, 1).index_select(0, slots)

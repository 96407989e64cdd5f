"""The forward pass of models that transformers runs: our paged attention in its own layers."""

import torch
from torch import Tensor

from headrace.core.interfaces import Batch
from headrace.runners.models.generic import GenericModel
from headrace.runners.torch_cpu.attention import PagedAttention
from headrace.runners.torch_cpu.storage import KVStorage


class GenericForward:
    """Runs batches. Logits depend on batch mates in their last bits, as the maths library sees fit."""

    def __init__(self, model: GenericModel, storage: KVStorage, block_size: int) -> None:
        self._model, self._storage = model, storage
        self._layers = model.config.layers
        self._attention = PagedAttention(storage, block_size, [layer.window for layer in self._layers])

    def hidden(self, batch: Batch) -> Tensor:
        """Write K/V of all tokens, layer by layer, and return the last layer's output (T, hidden)."""
        slots, plans = [torch.tensor(of_group) for of_group in batch.slots], self._attention.plan(batch)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._storage.write(layer, slots, keys, values)
            return self._attention.attend(layer, queries, plans, self._layers[layer].scale)

        positions = torch.tensor(batch.positions, dtype=torch.int64)
        return self._model.hidden(torch.tensor(batch.token_ids, dtype=torch.int64), positions, attend)

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden) rows of the last hidden()."""
        return self._model.logits(x)

"""The fast forward pass: every layer on the whole flat batch."""

import torch
from torch import Tensor

from headrace.core.interfaces import Batch
from headrace.runners.models.contract import CausalModel
from headrace.runners.torch_cpu.attention import PagedAttention
from headrace.runners.torch_cpu.storage import KVStorage


class BatchedForward:
    """Runs batches. Logits depend on batch mates in their last bits, as the maths library sees fit."""

    def __init__(self, model: CausalModel, storage: KVStorage, block_size: int) -> None:
        self._model, self._storage = model, storage
        self._attention = PagedAttention(storage, block_size, [layer.window for layer in model.layers])

    def hidden(self, batch: Batch) -> Tensor:
        """Write K/V of all tokens, layer by layer, and return the last layer's output (T, hidden)."""
        positions = torch.tensor(batch.positions, dtype=torch.int64)
        slots, plans = [torch.tensor(of_group) for of_group in batch.slots], self._attention.plan(batch)
        scale = self._model.attention_scale
        x = self._model.embed(torch.tensor(batch.token_ids), positions)
        for index, layer in enumerate(self._model.layers):
            queries, keys, values = layer.before_attention(x, positions)
            self._storage.write(index, slots, keys, values)
            x = layer.after_attention(x, self._attention.attend(index, queries, plans, scale))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden) rows of the last hidden()."""
        return self._model.head(x)

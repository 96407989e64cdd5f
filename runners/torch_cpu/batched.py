"""The fast forward pass: every layer on the whole flat batch, attention over groups of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.core.columns import Ints
from headrace.core.interfaces import Batch
from headrace.runners.models.contract import CausalModel
from headrace.runners.torch_cpu.storage import KVStorage

_SHORT = 256
"""Contexts up to this length are padded to one length."""
_MAX_GATHERED = 1 << 16
"""Tokens of context whose K/V are copied at once."""


def context_slots(table: Ints, lengths: Ints, block_size: int) -> NDArray[np.int64]:
    """List the slots of whole contexts.

    table: (R, max_blocks) int32 block tables; lengths: (R,) tokens. Returns (R, lengths.max()) int64; 0, a slot of the
    null block, beyond a row's length.
    """
    positions = np.arange(lengths.max(), dtype=np.int64)
    slots: NDArray[np.int64] = table[:, positions // block_size] * np.int64(block_size) + positions % block_size
    slots[positions >= lengths[:, None]] = 0
    return slots


def similar_lengths(rows: Ints, lengths: Ints) -> list[Ints]:
    """Cut rows into groups to be padded to their longest context: at most to twice its length, and not too many tokens.

    rows: (n,) indices into lengths.
    """
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    magnitudes = np.frexp(np.maximum(lengths[rows], _SHORT) - 1)[1]
    groups = np.split(rows, np.flatnonzero(np.diff(magnitudes)) + 1)
    sizes = [max(1, _MAX_GATHERED // int(lengths[group].max(initial=1))) for group in groups]
    return [group[i : i + n] for group, n in zip(groups, sizes, strict=True) for i in range(0, len(group), n)]


@dataclass(slots=True)
class _Single:
    """Rows with one token each, attending together."""

    tokens: Tensor
    """(B,) their places in the flat list."""
    slots: Tensor
    """(B * L,) of their contexts."""
    mask: Tensor
    """(B, 1, 1, L) bool, what is no padding."""


@dataclass(slots=True)
class _Chunk:
    """One row with several tokens, at the end of its context."""

    start: int
    end: int
    slots: Tensor
    """(L,) of its context."""
    mask: Tensor | None
    """(n, L) bool, what each token sees; None if the chunk is the whole context."""


class BatchedForward:
    """Runs batches. Logits depend on batch mates in their last bits, as the maths library sees fit."""

    def __init__(self, model: CausalModel, storage: KVStorage, block_size: int) -> None:
        self._model, self._storage, self._block_size = model, storage, block_size

    def hidden(self, batch: Batch) -> Tensor:
        """Write K/V of all tokens, layer by layer, and return the last layer's output (T, hidden)."""
        positions = torch.tensor(batch.positions, dtype=torch.int64)
        slots = torch.tensor(batch.slots[0])
        plan = self._plan(batch)
        x = self._model.embed(torch.tensor(batch.token_ids))
        for index, layer in enumerate(self._model.layers):
            queries, keys, values = layer.before_attention(x, positions)
            self._storage.write(index, slots, keys, values)
            x = layer.after_attention(x, self._attend(index, queries, plan))
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden) rows of the last hidden()."""
        return self._model.head(x)

    def _plan(self, batch: Batch) -> list[_Single | _Chunk]:
        counts = np.diff(batch.starts)
        singles = np.flatnonzero(counts == 1).astype(np.int32)
        groups = similar_lengths(singles, batch.context_lens) if len(singles) else []
        chunks = [self._chunk(batch, int(row)) for row in np.flatnonzero(counts > 1)]
        return [*(self._single(batch, group) for group in groups), *chunks]

    def _single(self, batch: Batch, rows: Ints) -> _Single:
        lengths = batch.context_lens[rows]
        slots = context_slots(batch.tables[0][rows], lengths, self._block_size)
        mask = np.arange(slots.shape[1]) < lengths[:, None]
        tokens = torch.tensor(batch.starts[rows])
        return _Single(tokens, torch.from_numpy(slots.reshape(-1)), torch.from_numpy(mask)[:, None, None, :])

    def _chunk(self, batch: Batch, row: int) -> _Chunk:
        start, end = int(batch.starts[row]), int(batch.starts[row + 1])
        slots = context_slots(batch.tables[0][row : row + 1], batch.context_lens[row : row + 1], self._block_size)[0]
        before = len(slots) - (end - start)
        mask = torch.ones(end - start, len(slots), dtype=torch.bool).tril(before) if before else None
        return _Chunk(start, end, torch.from_numpy(slots), mask)

    def _attend(self, layer: int, queries: Tensor, plan: Sequence[_Single | _Chunk]) -> Tensor:
        out = torch.empty_like(queries)
        for part in plan:
            keys, values = self._storage.read(layer, part.slots)
            if isinstance(part, _Single):
                out[part.tokens] = self._attend_single(queries[part.tokens], keys, values, part.mask)
            else:
                out[part.start : part.end] = self._attend_chunk(queries[part.start : part.end], keys, values, part.mask)
        return out

    def _attend_single(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from (B, heads, D) over (B * L, kv_heads, D), the heads of a group as queries of one KV head."""
        num_rows, num_heads, head_dim = queries.shape
        kv_heads = keys.shape[1]
        keys, values = (x.view(num_rows, -1, kv_heads, head_dim).transpose(1, 2) for x in (keys, values))
        grouped = queries.view(num_rows, kv_heads, -1, head_dim)
        scale = self._model.attention_scale
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
        return attended.reshape(num_rows, num_heads, head_dim)

    def _attend_chunk(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from (n, heads, D) over (L, kv_heads, D), a batch entry per KV head."""
        num_tokens, num_heads, head_dim = queries.shape
        kv_heads = keys.shape[1]
        group = num_heads // kv_heads
        keys, values = (x.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1) for x in (keys, values))
        grouped = queries.view(num_tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        attended = scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=self._model.attention_scale
        )
        return attended.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)

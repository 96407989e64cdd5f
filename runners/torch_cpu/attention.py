"""Attention of a flat batch over paged K/V, fast: rows with one token each in groups, longer ones by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.core.columns import Ints
from headrace.core.interfaces import Batch
from headrace.runners.torch_cpu.storage import KVStorage

_SHORT = 256
"""Contexts up to this length are padded to one length."""
_MAX_GATHERED = 1 << 16
"""Tokens of context whose K/V are copied at once."""


def context_slots(table: Ints, lengths: Ints, block_size: int, seen: int | None = None) -> NDArray[np.int64]:
    """List the slots of whole contexts, or of their last `seen` tokens.

    table: (R, max_blocks) int32 block tables; lengths: (R,) tokens. Returns (R, L) int64 where L is the longest of the
    lists; 0, a slot of the null block, beyond a row's length.
    """
    firsts = np.zeros_like(lengths) if seen is None else np.maximum(lengths - seen, 0)
    positions = firsts[:, None] + np.arange((lengths - firsts).max(), dtype=np.int64)
    is_beyond = positions >= lengths[:, None]
    positions[is_beyond] = 0
    blocks = np.take_along_axis(table, positions // block_size, axis=1).astype(np.int64)
    slots: NDArray[np.int64] = blocks * block_size + positions % block_size
    slots[is_beyond] = 0
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
    """(B * L,) of what they see."""
    mask: Tensor
    """(B, 1, 1, L) bool, what is no padding."""


@dataclass(slots=True)
class _Chunk:
    """One row with several tokens, at the end of its context."""

    start: int
    end: int
    slots: Tensor
    """(L,) of what its tokens see."""
    mask: Tensor | None
    """(n, L) bool, what each token sees; None if that is all of the chunk before it."""


Plan = list[_Single | _Chunk]
Plans = dict[int | None, Plan]
"""By window."""


class PagedAttention:
    """Attends over the K/V of a storage. Results depend on batch mates in their last bits."""

    def __init__(self, storage: KVStorage, block_size: int, windows: Sequence[int | None]) -> None:
        """Start; windows: tokens that a query sees in each layer, itself included (None: all before it)."""
        self._storage, self._block_size, self._windows = storage, block_size, windows
        self._group_of = dict(zip(windows, storage.group_of_layer, strict=True))
        """By window, the KV group of its layers."""

    def plan(self, batch: Batch) -> Plans:
        """Cut a batch into parts, in one way for each window."""
        counts = np.diff(batch.starts)
        singles = np.flatnonzero(counts == 1).astype(np.int32)
        alike = similar_lengths(singles, batch.context_lens) if len(singles) else []
        longer = np.flatnonzero(counts > 1).tolist()
        return {
            window: [
                *(self._single(batch, batch.tables[group], rows, window) for rows in alike),
                *(self._chunk(batch, batch.tables[group], row, window) for row in longer),
            ]
            for window, group in self._group_of.items()
        }

    def attend(self, layer: int, queries: Tensor, plans: Plans, scale: float) -> Tensor:
        """Return what queries (T, heads, D) find in the K/V of a layer, in their shape."""
        out = torch.empty_like(queries)
        for part in plans[self._windows[layer]]:
            keys, values = self._storage.read(layer, part.slots)
            if isinstance(part, _Single):
                out[part.tokens] = _attend_single(queries[part.tokens], keys, values, part.mask, scale)
            else:
                own = slice(part.start, part.end)
                out[own] = _attend_chunk(queries[own], keys, values, part.mask, scale)
        return out

    def _single(self, batch: Batch, table: Ints, rows: Ints, window: int | None) -> _Single:
        lengths = batch.context_lens[rows]
        slots = context_slots(table[rows], lengths, self._block_size, window)
        seen = lengths if window is None else np.minimum(lengths, window)
        mask = np.arange(slots.shape[1]) < seen[:, None]
        tokens = torch.tensor(batch.starts[rows])
        return _Single(tokens, torch.from_numpy(slots.reshape(-1)), torch.from_numpy(mask)[:, None, None, :])

    def _chunk(self, batch: Batch, table: Ints, row: int, window: int | None) -> _Chunk:
        start, end = int(batch.starts[row]), int(batch.starts[row + 1])
        count = end - start
        seen = None if window is None else window + count - 1
        slots = context_slots(table[row : row + 1], batch.context_lens[row : row + 1], self._block_size, seen)[0]
        before = len(slots) - count
        mask = torch.ones(count, len(slots), dtype=torch.bool).tril(before)
        if window is not None:
            mask = mask.triu(before - window + 1)
        is_causal = before == 0 and (window is None or count <= window)
        return _Chunk(start, end, torch.from_numpy(slots), None if is_causal else mask)


def _attend_single(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attend from (B, heads, D) over (B * L, kv_heads, D), the heads of a group as queries of one KV head."""
    num_rows, num_heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    keys, values = (x.view(num_rows, -1, kv_heads, head_dim).transpose(1, 2) for x in (keys, values))
    grouped = queries.view(num_rows, kv_heads, -1, head_dim)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale)
    return attended.reshape(num_rows, num_heads, head_dim)


def _attend_chunk(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend from (n, heads, D) over (L, kv_heads, D), a batch entry per KV head."""
    num_tokens, num_heads, head_dim = queries.shape
    kv_heads = keys.shape[1]
    group = num_heads // kv_heads
    keys, values = (x.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1) for x in (keys, values))
    grouped = queries.view(num_tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale)
    return attended.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)

"""The deterministic forward pass: a row's logits are bitwise the same whatever else is in the batch.

What varies with the batch never reaches the maths library. Everything but attention runs on tiles of exactly TILE rows,
the last one filled up with zeros; attention runs query by query over exactly its own context, so that the shapes of
its products depend on nothing but the query's position. Neither batch mates nor the chunks a prompt came in matter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.columns import Ints
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Batch
from headrace.runners.models.contract import CausalModel
from headrace.runners.torch_cpu.attention import context_slots
from headrace.runners.torch_cpu.storage import KVStorage

TILE = 32


def in_tiles(stage: Callable[..., tuple[Tensor, ...]], *columns: Tensor) -> tuple[Tensor, ...]:
    """Run a stage of a model on tiles of its rows.

    columns: what the stage takes, each (T, ...). Returns what it gives, each (T, ...). Tiles are copies, so that rows
    lie in memory alike.
    """
    num_rows = columns[0].shape[0]
    parts = [stage(*(_tile(column, start) for column in columns)) for start in range(0, max(num_rows, 1), TILE)]
    return tuple(torch.cat(outputs)[:num_rows] for outputs in zip(*parts, strict=True))


def _tile(column: Tensor, start: int) -> Tensor:
    rows = column[start : start + TILE]
    tile = column.new_zeros((TILE, *column.shape[1:]))
    tile[: rows.shape[0]] = rows
    return tile


@dataclass(slots=True)
class _Row:
    """One row of a batch."""

    start: int
    end: int
    slots: Tensor
    """(L,) of what its tokens see; they are the last ones."""


class TiledForward:
    """Runs batches. Its model is built with layers.TILES."""

    def __init__(self, model: CausalModel, storage: KVStorage, block_size: int) -> None:
        self._model, self._storage, self._block_size = model, storage, block_size
        windows = [layer.window for layer in model.layers]
        self._group_of = dict(zip(windows, storage.group_of_layer, strict=True))
        """By window, the KV group of its layers."""
        check_rows_alike(model)

    def hidden(self, batch: Batch) -> Tensor:
        """Write K/V of all tokens, layer by layer, and return the last layer's output (T, hidden)."""
        positions = torch.tensor(batch.positions, dtype=torch.int64)
        slots = [torch.tensor(of_group) for of_group in batch.slots]
        rows = {
            window: [self._row(batch, batch.tables[group], index, window) for index in range(len(batch.rows))]
            for window, group in self._group_of.items()
        }
        x = self._model.embed(torch.tensor(batch.token_ids), positions)
        for index, layer in enumerate(self._model.layers):
            queries, keys, values = in_tiles(layer.before_attention, x, positions)
            self._storage.write(index, slots, keys, values)
            (x,) = in_tiles(
                _single(layer.after_attention), x, self._attend(index, queries, rows[layer.window], layer.window)
            )
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden) rows of the last hidden()."""
        (logits,) = in_tiles(_single(self._model.head), x)
        return logits

    def _row(self, batch: Batch, table: Ints, index: int, window: int | None) -> _Row:
        start, end = int(batch.starts[index]), int(batch.starts[index + 1])
        seen, length = None if window is None else window + end - start - 1, batch.context_lens[index : index + 1]
        slots = context_slots(table[index : index + 1], length, self._block_size, seen)[0]
        return _Row(start, end, torch.from_numpy(slots))

    def _attend(self, layer: int, queries: Tensor, rows: list[_Row], window: int | None) -> Tensor:
        out = torch.empty_like(queries)
        with _one_thread():
            for row in rows:
                self._attend_row(layer, queries, row, window, out)
        return out

    def _attend_row(self, layer: int, queries: Tensor, row: _Row, window: int | None, out: Tensor) -> None:
        keys, values = self._storage.read(layer, row.slots)
        keys, values = keys.float().permute(1, 2, 0), values.float().transpose(0, 1)
        first_length = len(row.slots) - (row.end - row.start) + 1
        for token, length in enumerate(range(first_length, len(row.slots) + 1), row.start):
            first = 0 if window is None else max(0, length - window)
            out[token] = self._attend_one(queries[token], keys[:, :, first:length], values[:, first:length])

    def _attend_one(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend from (heads, D) over keys (kv_heads, D, L) and values (kv_heads, L, D), in float32."""
        grouped = query.float().view(keys.shape[0], -1, query.shape[1]) * self._model.attention_scale
        weights = torch.bmm(grouped, keys).softmax(dim=-1)
        return torch.bmm(weights, values).view(query.shape)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch from sharing out work that takes microseconds: threads would wait for each other much longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _single(stage: Callable[..., Tensor]) -> Callable[..., tuple[Tensor]]:
    return lambda *columns: (stage(*columns),)


def check_rows_alike(model: CausalModel) -> None:
    """Check that this machine's maths library computes equal rows of a tile equally. Raises ConfigError if not.

    It does where it was tried (MKL and oneDNN on x86), but nothing promises it.
    """
    layer, positions = model.layers[0], torch.full((TILE,), 7)
    x = model.embed(torch.zeros(TILE, dtype=torch.int64), positions)
    x = x + torch.linspace(-1, 1, x.shape[1], dtype=x.dtype)
    queries, keys, values = layer.before_attention(x, positions)
    outputs = (queries, keys, values, layer.after_attention(x, queries), model.head(x))
    if not all(torch.equal(output, output[:1].expand_as(output)) for output in outputs):
        raise ConfigError(
            "engine.deterministic is true, but this machine's maths library rounds equal rows differently"
            f" (torch {torch.__version__}, {torch.get_num_threads()} threads); try another engine.threads"
        )

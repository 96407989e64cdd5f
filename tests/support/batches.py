"""Batches for a StepModel, made by hand: sequences with block tables, advanced so many tokens at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from families import FAMILIES

from headrace.core.config import EngineConfig
from headrace.core.interfaces import Batch
from headrace.core.providers import RunnerContext
from headrace.runners.torch_cpu.model import TorchModel

BLOCK_SIZE = 16
MOST_GROUPS = 2
"""KV groups that a batch made here is for; all have the same tables."""


@dataclass
class Row:
    """One sequence: its ids, the blocks that hold its K/V, and how many tokens are computed."""

    token_ids: list[int]
    table: list[int]
    computed: int = 0


class Blocks:
    """Hands out block ids in random order, each once."""

    def __init__(self, num_blocks: int, seed: int = 0) -> None:
        self._ids = np.random.default_rng(seed).permutation(np.arange(1, num_blocks + 1)).tolist()

    def row(self, token_ids: Sequence[int], room: int = 0) -> Row:
        """Make a row with blocks for its ids and `room` more tokens."""
        return Row(list(token_ids), [self._ids.pop() for _ in range(-(-(len(token_ids) + room) // BLOCK_SIZE))])


def take(parts: Iterable[tuple[Row, int]]) -> Batch:
    """Make a batch of the next so many tokens of each row, and count them as computed."""
    parts = list(parts)
    counts = [count for _, count in parts]
    positions = [np.arange(row.computed, row.computed + count) for row, count in parts]
    tables = np.zeros((len(parts), max(len(row.table) for row, _ in parts)), dtype=np.int32)
    slots = []
    for table, (row, _), places in zip(tables, parts, positions, strict=True):
        table[: len(row.table)] = row.table
        slots.append(table[places // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + places % BLOCK_SIZE)
    token_ids = [row.token_ids[row.computed : row.computed + count] for row, count in parts]
    for row, count in parts:
        row.computed += count
    return Batch(
        rows=np.arange(len(parts), dtype=np.int32),
        token_ids=np.concatenate(token_ids).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        starts=np.cumsum([0, *counts], dtype=np.int32),
        context_lens=np.array([row.computed for row, _ in parts], dtype=np.int32),
        slots=[np.concatenate(slots)] * MOST_GROUPS,
        tables=[tables] * MOST_GROUPS,
        samples=np.arange(len(parts), dtype=np.int32),
        logit_places=np.cumsum(counts, dtype=np.int32) - 1,
    )


def run(model: TorchModel, parts: Iterable[tuple[Row, int]]) -> list[np.ndarray]:
    """Run a batch and return each row's (count, vocab_size) logits."""
    batch = take(parts)
    model.forward(batch)
    logits = model.logits(np.arange(len(batch.token_ids), dtype=np.int32)).copy()
    return np.split(logits, batch.starts[1:-1])


def run_chunks(model: TorchModel, row: Row, chunk: int) -> np.ndarray:
    """Run what is left of a row alone, so many tokens at a time; returns logits of all these tokens."""
    counts = range(row.computed, len(row.token_ids), chunk)
    return np.concatenate([run(model, [(row, min(chunk, len(row.token_ids) - at))])[0] for at in counts])


def load_torch(path: Path, **config: Any) -> TorchModel:
    """Load a model into the torch runner, with few blocks and one thread unless the test says else."""
    model = TorchModel(context_of(path, **config))
    model.load()
    return model


def context_of(path: Path, **config: Any) -> RunnerContext:
    """Make the context that a TorchModel is built from; its clock stands still."""
    given = {"num_kv_blocks": 256, "threads": 1, "block_size": BLOCK_SIZE, **config}
    return RunnerContext(EngineConfig(**given), path, max_rows=64, clock=lambda: 0.0, families=FAMILIES)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities in double precision."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

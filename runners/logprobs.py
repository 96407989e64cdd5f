"""Log probabilities as the model gave them, of sampled tokens and of prompts; and the likeliest tokens of a row."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from headrace.core.columns import Floats, pack_floats, pack_ints
from headrace.core.interfaces import Batch, StepModel
from headrace.core.messages import Logprobs
from headrace.runners.batch import NO_LOGPROBS, WorkerState

PROMPT_SLICE = 64
"""Positions of a prompt whose logits are in memory at once."""
_GROUP_SIZE = 64
_LOWEST = np.finfo(np.float32).min


def likeliest(logits: Floats, num_ids: int) -> NDArray[np.intp]:
    """Return the ids of the highest logits, best first, of equal ones the lowest id first; none that is minus infinity.

    logits: (vocab_size,) without NaN. Sorts little more than it returns, but for ties.
    """
    ids = np.flatnonzero(logits >= max(_bound(logits, num_ids), _LOWEST))
    return ids[np.argsort(-logits[ids], kind="stable")[:num_ids]]


def _bound(logits: Floats, num_ids: int) -> np.float32:
    """Find a value that at least `num_ids` logits reach, and few more: in 14 us where np.partition of all takes 80."""
    width = len(logits) // _GROUP_SIZE
    if num_ids <= width:  # as many groups have a highest logit that reaches it
        logits = logits[: width * _GROUP_SIZE].reshape(_GROUP_SIZE, width).max(axis=0)
    bound: np.float32 = np.partition(logits, -num_ids)[-num_ids] if num_ids < len(logits) else logits.min()
    return bound


@dataclass(slots=True)
class LogprobColumns:
    """Collects entries of a Logprobs message."""

    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    token_ids: list[NDArray[np.intp]] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)

    def add(self, row: int, position: int, logits: Floats, token_id: int, num_alternatives: int) -> None:
        """Report the token at a position, and the likeliest ones there; logits (vocab_size,) are finite at the top.

        The softmax is taken around the highest logit, its sum in double precision.
        """
        ids = np.array([token_id], dtype=np.intp)
        if num_alternatives:
            ids = np.append(ids, likeliest(logits, num_alternatives))
        highest = logits.max()
        log_sum = np.log(np.exp(logits - highest).sum(dtype=np.float64))
        self.rows.append(row)
        self.positions.append(position)
        self.ranks.append(1 + int(np.count_nonzero(logits > logits[token_id])))
        self.token_ids.append(ids)
        self.logprobs.append((logits[ids].astype(np.float64) - highest - log_sum).astype(np.float32))

    def pack(self) -> Logprobs | None:
        """Return the message; None if there is nothing to report."""
        if not self.rows:
            return None
        return Logprobs(
            rows=pack_ints(self.rows),
            positions=pack_ints(self.positions),
            ranks=pack_ints(self.ranks),
            widths=pack_ints([len(ids) for ids in self.token_ids]),
            token_ids=pack_ints(np.concatenate(self.token_ids)),
            logprobs=pack_floats(np.concatenate(self.logprobs)),
        )


def joined(parts: Sequence[Logprobs | None]) -> Logprobs | None:
    """Put several reports together; None where none says anything."""
    found = [astuple(part) for part in parts if part is not None]
    return Logprobs(*(b"".join(columns) for columns in zip(*found, strict=True))) if found else None


def prompt_logprobs(model: StepModel, batch: Batch, state: WorkerState) -> tuple[Logprobs | None, set[int]]:
    """Report this step's chunks of those prompts that asked, after the model's forward.

    Logits at a position tell about the token after it, so the prompt's first token has no entry.
    Returns the entries, and the rows whose logits aren't finite at the top: their entries end there.
    """
    if not state.have_extras(batch.rows):
        return None, set()
    wanted = (state.num_prompt_logprobs[batch.rows] != NO_LOGPROBS).nonzero()[0]
    columns, failed = LogprobColumns(), set()
    with np.errstate(over="ignore"):
        for i in wanted.tolist():
            row = int(batch.rows[i])
            if not _report_chunk(model, batch, state, i, row, columns):
                failed.add(row)
    return columns.pack(), failed


def _report_chunk(
    model: StepModel, batch: Batch, state: WorkerState, i: int, row: int, columns: LogprobColumns
) -> bool:
    first, end = int(batch.starts[i]), int(batch.starts[i + 1])
    offset = int(batch.positions[first]) - first + 1  # of the token that logits at a flat index tell about
    end = min(end, int(state.num_prompt[row]) - offset)
    for begin in range(first, end, PROMPT_SLICE):
        indices = np.arange(begin, min(begin + PROMPT_SLICE, end), dtype=np.int32)
        logits = model.logits(indices)
        if not np.isfinite(logits.max(axis=1)).all():
            return False
        for at, position in zip(logits, (indices + offset).tolist(), strict=True):
            token_id, num_alternatives = int(state.token_ids[row, position]), int(state.num_prompt_logprobs[row])
            columns.add(row, position, at, token_id, num_alternatives)
    return True

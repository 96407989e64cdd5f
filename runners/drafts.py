"""Draft tokens: a proposer guesses them, and one forward verifies them.

Each position is sampled with its own random number, in order, as long as what came before it was a right guess. So the
tokens are those of a run without drafts, greedy or sampled. Source: the exact-match case of Leviathan et al. 2023,
"Fast inference from transformers via speculative decoding", for samplers whose randomness belongs to the position.
"""

from collections.abc import Callable

import numpy as np

from headrace.core.columns import Floats, Ints
from headrace.core.errors import PluginError
from headrace.core.extensions import Proposer
from headrace.core.interfaces import Batch
from headrace.runners.batch import WorkerState
from headrace.runners.logprobs import joined
from headrace.runners.sampler import Sampled

Sampler = Callable[[Floats, WorkerState, Ints], Sampled]
"""Chooses tokens as sampler.sample does; a runner may have one of its own."""


def propose(proposer: Proposer, state: WorkerState, rows: Ints, asked: Ints) -> Ints | None:
    """Fill the room for drafts of these rows; returns how many each got, None if no row has room."""
    room = state.room_for_drafts(rows, asked)
    places = np.flatnonzero(room)
    if not len(places):
        return None
    counts = np.zeros(len(rows), dtype=np.int32)
    try:
        drafts = proposer.propose(state, rows[places], room[places])
    except Exception as error:
        raise PluginError(f"proposer {type(proposer).__name__} raised {type(error).__name__}: {error}") from error
    for i, token_ids in zip(places.tolist(), drafts, strict=True):
        kept = token_ids[: room[i]]
        state.put_drafts(int(rows[i]), kept)
        counts[i] = len(kept)
    return counts


def sample_rows(sampler: Sampler, logits: Floats, state: WorkerState, batch: Batch) -> Sampled:
    """Choose the next tokens of the batch's rows that sample, and append them to the rows.

    logits: those at batch.logit_places; at least one row samples.
    A row that fails on its first token has failed; on a later one, it ends there and fails in its next step.
    """
    if batch.num_drafts is None:
        sampled = sampler(logits, state, batch.rows[batch.samples])
        state.append(sampled.rows, sampled.token_ids)
        return sampled
    samples, num_drafts = batch.samples, batch.num_drafts[batch.samples]
    first = np.cumsum(num_drafts + 1) - num_drafts - 1
    active = np.arange(len(samples))
    parts, places = [], []
    for depth in range(int(num_drafts.max(initial=0)) + 1):
        rows = batch.rows[samples[active]]
        drafts = state.token_ids[rows, state.num_ids[rows]]  # of a row without one, anything
        sampled = sampler(logits[first[active] + depth], state, rows)
        is_sound = np.isin(rows, sampled.rows)
        state.append(sampled.rows, sampled.token_ids)
        parts.append(sampled)
        places.append(active[is_sound])
        is_right = is_sound & (num_drafts[active] > depth)
        is_right[is_sound] &= sampled.token_ids == drafts[is_sound]
        active = active[is_right]
        if not len(active):
            break
    sampled = _together(parts, np.concatenate(places))
    state.settle(sampled.rows)
    return sampled


def _together(parts: list[Sampled], places: Ints) -> Sampled:
    """Put the tokens of all depths in the order of the rows."""
    order = places.argsort(kind="stable")
    return Sampled(
        rows=np.concatenate([part.rows for part in parts])[order],
        token_ids=np.concatenate([part.token_ids for part in parts])[order],
        failed=parts[0].failed,
        logprobs=joined([part.logprobs for part in parts]),
    )

"""The native sampler against the numpy sampler, row by row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native_models import Kernels
from random_requests import random_request

from headrace.core.columns import Floats, Ints, floats, ints, pack_ints
from headrace.core.extensions import LogitsProcessor
from headrace.core.messages import BindRow, KVGroup, Logprobs, RowSampling, RunnerReady, RunStep
from headrace.runners.batch import WorkerState
from headrace.runners.native.sampling import NativeSampler
from headrace.runners.sampler import Sampled, sample

ROWS = 24


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(threads=2)


def state_of(vocab: int, requests: list[RowSampling], rng: np.random.Generator) -> tuple[WorkerState, Ints]:
    """Bind a row to each request, with prompts and outputs of all lengths."""
    state = WorkerState(RunnerReady(vocab, 64, (KVGroup(1, 9),), 1), 2 * len(requests), 16, build_processor)
    rows = rng.permutation(2 * len(requests))[: len(requests)].astype(np.int32)
    lengths = rng.integers(1, 60, len(requests))
    bound = tuple(
        BindRow(row, pack_ints(rng.integers(0, min(vocab, 30), length)), int(rng.integers(1, length + 1)), 0, request)
        for row, length, request in zip(rows.tolist(), lengths.tolist(), requests, strict=True)
    )
    state.apply(RunStep(1, pack_ints(rows), pack_ints(lengths), bound))
    return state, rows


def build_processor(name: str, arguments: dict[str, Any], vocab_size: int) -> LogitsProcessor:
    """Build one that lets through ids of another parity than the last one's."""

    def alternate(token_ids: Ints, num_prompt: int, logits: Floats) -> None:
        logits[token_ids[-1] % 2 :: 2] = -np.inf

    return alternate


def smooth(rng: np.random.Generator, vocab: int) -> Floats:
    return (rng.standard_normal((ROWS, vocab)) * 3).astype(np.float32)


def with_ties(rng: np.random.Generator, vocab: int) -> Floats:
    return rng.integers(-3, 4, (ROWS, vocab)).astype(np.float32)


def unsound(rng: np.random.Generator, vocab: int) -> Floats:
    logits = smooth(rng, vocab)
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[3, rng.integers(0, vocab)] = np.nan
    logits[5, rng.integers(0, vocab)] = np.inf
    logits[7] = -np.inf
    logits[9, -1] = np.nan
    return logits


def entries(message: Logprobs | None) -> list[tuple[list[int], Floats]]:
    """List rows, positions, ranks and ids of each entry, and its values."""
    if message is None:
        return []
    widths = ints(message.widths)
    ends = np.cumsum(widths)
    heads = zip(ints(message.rows), ints(message.positions), ints(message.ranks), strict=True)
    return [
        (
            [*map(int, head), *ints(message.token_ids)[end - width : end].tolist()],
            floats(message.logprobs)[end - width : end],
        )
        for head, width, end in zip(heads, widths, ends, strict=True)
    ]


def assert_same(found: Sampled, expected: Sampled) -> None:
    assert found.failed == expected.failed
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    for (ids, values), (expected_ids, expected_values) in zip(
        entries(found.logprobs), entries(expected.logprobs), strict=True
    ):
        assert ids == expected_ids
        np.testing.assert_allclose(values, expected_values, atol=1e-5)


@pytest.mark.parametrize("make", [smooth, with_ties, unsound])
@pytest.mark.parametrize("vocab", [32, 203, 5000])
def test_tokens_failures_and_logprobs_are_those_of_the_numpy_sampler(
    vocab: int, make: Callable[[np.random.Generator, int], Floats], kernels: Kernels
) -> None:
    native = NativeSampler(kernels.library, kernels.team, vocab)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        state, rows = state_of(vocab, [random_request(vocab, rng) for _ in range(ROWS)], rng)
        logits = make(rng, vocab)
        before = logits.copy()
        assert_same(native.sample(logits, state, rows), sample(logits, state, rows))
        np.testing.assert_array_equal(logits, before)


def test_a_row_that_is_bound_again_is_sampled_as_its_new_request_says(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    native = NativeSampler(kernels.library, kernels.team, 500)
    requests = [random_request(500, rng) for _ in range(8)]
    state, rows = state_of(500, requests, rng)
    for _ in range(20):
        logits = smooth(rng, 500)[:8]
        assert_same(native.sample(logits, state, rows), sample(logits, state, rows))
        state.append(rows, rng.integers(0, 500, 8).astype(np.int32)) if state.num_ids.max() < 60 else None
        row, request = int(rng.choice(rows)), random_request(500, rng)
        bind = BindRow(row, pack_ints(rng.integers(0, 30, 9)), 4, 0, request)
        state.apply(RunStep(2, pack_ints([row]), pack_ints([9]), (bind,)))


def test_a_large_vocabulary_is_sampled_alike(kernels: Kernels) -> None:
    rng = np.random.default_rng(1)
    vocab = 262_144
    native = NativeSampler(kernels.library, kernels.team, vocab)
    state, rows = state_of(vocab, [random_request(vocab, rng) for _ in range(ROWS)], rng)
    logits = smooth(rng, vocab)
    assert_same(native.sample(logits, state, rows), sample(logits, state, rows))

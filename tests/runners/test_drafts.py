"""Verification of drafts in a worker: what each row gives, and what becomes of rows that fail."""

import time

import numpy as np
import pytest
from proposers import Guesser

from headrace.core.columns import floats, ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.messages import BindRow, RowSampling, RunStep
from headrace.core.providers import RunnerContext
from headrace.runners.kvhash import KVHashModel, KVHashOptions, next_logits, reference
from headrace.runners.worker import make_worker

CONFIG = EngineConfig(max_model_len=64, block_size=4, num_kv_blocks=120, num_speculative_tokens=3)
PROMPT = [5, 6, 7]


class Given(Guesser):
    """Proposes the right ids up to `num_right`, then wrong ones; or raises."""

    num_right = 3
    error = None

    def propose(self, state, rows, counts):
        if self.error:
            raise self.error
        return super().propose(state, rows, counts)

    def _guess(self, ids, count):
        drafts = self._right(ids, count)
        drafts[self.num_right :] ^= 1
        return drafts


class Spoiled(KVHashModel):
    """kvhash whose logits at one position are not a number."""

    nan_at = None

    def logits(self, indices):
        logits = super().logits(indices)
        if self.nan_at is not None:
            logits[self._batch.positions[indices] == self.nan_at, 0] = np.nan
        return logits


@pytest.fixture
def parts():
    proposer, model = Given(KVHashOptions()), Spoiled(CONFIG, KVHashOptions())
    worker = make_worker(model, RunnerContext(CONFIG, None, 8, time.monotonic, proposer=proposer))
    worker.load()
    yield worker, proposer, model
    worker.close()


def params(**changes):
    return RowSampling(**{"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 9, **changes})


def prefill(worker, rows=(0,), **sampling):
    tables = [(0, row, index, 1 + 10 * row + index) for row in rows for index in range(10)]
    bound = tuple(BindRow(row, pack_ints([*PROMPT, row]), 4, 0, params(**sampling)) for row in rows)
    tables = np.array(tables, dtype=np.int32).tobytes()
    return worker.execute(RunStep(1, pack_ints(rows), pack_ints([4] * len(rows)), bound, tables))


def decode(worker, step, asked, rows=(0,)):
    return worker.execute(RunStep(step, pack_ints(rows), pack_ints(asked)))


def columns(done):
    assert done.error is None
    return ints(done.num_new).tolist(), ints(done.token_ids).tolist(), ints(done.num_drafted).tolist()


@pytest.mark.parametrize("num_right", range(4))
def test_a_row_gives_one_token_more_than_its_right_drafts(parts, num_right):
    worker, proposer, _ = parts
    proposer.num_right = num_right
    expected = reference([*PROMPT, 0], 20)
    assert columns(prefill(worker)) == ([1], expected[:1], [])
    given = 1
    for step in range(2, 5):
        count = num_right + 1
        assert columns(decode(worker, step, [4])) == ([count], expected[given : given + count], [3])
        given += count


def test_tokens_come_row_by_row_in_the_order_of_the_step(parts):
    worker, *_ = parts
    prefill(worker, rows=(0, 1, 2))
    num_new, token_ids, drafted = columns(decode(worker, 2, [1, 3, 2], rows=(2, 0, 1)))
    assert (num_new, drafted) == ([1, 3, 2], [0, 2, 1])
    shares = ((2, 1), (0, 3), (1, 2))
    assert token_ids == [token for row, count in shares for token in reference([*PROMPT, row], 1 + count)[1:]]


def test_each_token_has_the_log_probabilities_of_its_own_position(parts):
    worker, *_ = parts
    prefill(worker, logprobs=0)
    done = decode(worker, 2, [4])
    ids = [*PROMPT, 0, *reference([*PROMPT, 0], 5)]
    assert ints(done.logprobs.positions).tolist() == [5, 6, 7, 8]
    for position, value in zip(range(5, 9), floats(done.logprobs.logprobs).tolist(), strict=True):
        logits = next_logits(ids[:position]).astype(np.float64)
        assert value == pytest.approx(logits[ids[position]] - np.log(np.exp(logits).sum()), abs=1e-5)


def test_a_row_that_fails_behind_an_accepted_draft_ends_there_and_fails_in_its_next_step(parts):
    worker, _, model = parts
    prefill(worker)
    model.nan_at = 6
    expected = reference([*PROMPT, 0], 3)
    done = decode(worker, 2, [4])
    assert columns(done)[:2] == ([2], expected[1:3])
    assert not done.failed
    done = decode(worker, 3, [4])
    assert columns(done)[0] == [0]
    assert [failure.row for failure in done.failed] == [0]


def test_a_proposer_that_raises_is_named_in_the_failure_of_its_step(parts):
    worker, proposer, _ = parts
    prefill(worker)
    proposer.error = ValueError("no idea")
    done = decode(worker, 2, [4])
    assert "proposer Given raised ValueError: no idea" in done.error.message


def test_more_drafts_than_asked_for_are_cut(parts):
    worker, proposer, _ = parts
    prefill(worker)
    proposer.propose = lambda state, rows, counts: [proposer._right(state.token_ids[0, : state.num_ids[0]], 9)]
    assert columns(decode(worker, 2, [3])) == ([3], reference([*PROMPT, 0], 4)[1:], [2])

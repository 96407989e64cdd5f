"""The worker: model, rows and sampler in the order of the steps."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.columns import Floats, Ints, floats, ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import EngineClosed, ModelFileDamaged, restore
from headrace.core.interfaces import Batch
from headrace.core.messages import BindRow, RowSampling, RunnerReady, RunStep, StepDone
from headrace.core.providers import RunnerContext
from headrace.runners.kvhash import KVHashModel, KVHashOptions, next_logits, reference
from headrace.runners.philox import uniforms
from headrace.runners.sampler import choose
from headrace.runners.worker import StandaloneWorker, make_worker

HANG_GUARD_S = 60
BLOCK_SIZE = 4
MAX_LEN = 64
MAX_ROWS = 8
CONFIG = EngineConfig(max_model_len=MAX_LEN, block_size=BLOCK_SIZE, num_kv_blocks=120)


def params(**changes: Any) -> RowSampling:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, **changes}
    return RowSampling(**values)


GREEDY = params()


class SpoiledModel(KVHashModel):
    """kvhash, but logits go through `spoil` with the rows of the batch they belong to, and forward may raise."""

    error: Exception | None = None
    spoil: Any = None

    def forward(self, batch: Batch) -> None:
        super().forward(batch)
        self.rows = batch.rows
        self.starts = batch.starts
        if self.error is not None:
            raise self.error

    def logits(self, indices: Ints) -> Floats:
        logits = super().logits(indices)
        if self.spoil:
            self.spoil(logits, self.rows[np.searchsorted(self.starts, indices, side="right") - 1])
        return logits


def load(model: KVHashModel) -> StandaloneWorker:
    worker = make_worker(model, RunnerContext(CONFIG, Path(), MAX_ROWS, time.monotonic))
    worker.load()
    return worker


@pytest.fixture
def model() -> SpoiledModel:
    return SpoiledModel(CONFIG, KVHashOptions())


@pytest.fixture
def worker(model: SpoiledModel) -> Iterator[StandaloneWorker]:
    worker = load(model)
    yield worker
    worker.close()


@dataclass
class Sequence:
    """One request, as a scheduler would drive it."""

    row: int
    ids: list[int]
    num_prompt: int
    sampling: RowSampling = GREEDY
    blocks: list[int] = field(default_factory=list)
    scheduled: int = 0
    """Tokens computed once all steps so far are done."""
    expected: int = 0
    """Tokens known once all steps so far are done."""
    bound: bool = False


class Driver:
    """The least a scheduler must do: blocks, tables and steps for sequences that the test orders about."""

    def __init__(self, worker: StandaloneWorker, num_groups: int = 1, seed: int = 0) -> None:
        self.worker = worker
        self.num_groups = num_groups
        self.free = np.random.default_rng(seed).permutation(np.arange(1, 121)).tolist()
        self.step_number = 0
        self.in_flight: list[tuple[list[Sequence], Any]] = []
        self.done: list[StepDone] = []

    def start(self, row: int, prompt: list[int], sampling: RowSampling = GREEDY) -> Sequence:
        return Sequence(row, list(prompt), len(prompt), sampling, expected=len(prompt))

    def step(self, asked: dict[int, int], *sequences: Sequence, reset: bool = False) -> None:
        """Submit a step: `asked` tokens by place of the sequence."""
        self.step_number += 1
        chosen = [sequences[place] for place in asked]
        bound = tuple(self._bind(sequence) for sequence in chosen if not sequence.bound)
        changes: list[tuple[int, int, int, int]] = []
        for place, count in asked.items():
            changes += self._schedule(sequences[place], count)
        tables = np.array(changes, dtype=np.int32).tobytes()
        rows, counts = [sequence.row for sequence in chosen], list(asked.values())
        message = RunStep(self.step_number, pack_ints(rows), pack_ints(counts), bound, tables, reset)
        self.in_flight.append((chosen, self.worker.submit(message, lambda: None)))

    def finish(self) -> StepDone:
        """Take in the oldest step's tokens."""
        sequences, handle = self.in_flight.pop(0)
        done: StepDone = handle.result()
        tokens = iter(ints(done.token_ids).tolist())
        for sequence, num_new in zip(sequences, ints(done.num_new).tolist(), strict=False):
            sequence.ids += [next(tokens) for _ in range(num_new)]
        self.done.append(done)
        return done

    def run(self, asked: dict[int, int], *sequences: Sequence, reset: bool = False) -> StepDone:
        self.step(asked, *sequences, reset=reset)
        return self.finish()

    def decode(self, num_steps: int, *sequences: Sequence) -> None:
        for _ in range(num_steps):
            self.run(dict.fromkeys(range(len(sequences)), 1), *sequences)

    def leave(self, sequence: Sequence) -> None:
        """Give up a sequence's row and blocks, as when it is preempted; the blocks keep stale content."""
        self.free += reversed(sequence.blocks)
        sequence.blocks, sequence.bound, sequence.scheduled = [], False, 0
        sequence.expected = len(sequence.ids)

    def _bind(self, sequence: Sequence) -> BindRow:
        sequence.bound = True
        return BindRow(sequence.row, pack_ints(sequence.ids), sequence.num_prompt, 0, sequence.sampling)

    def _schedule(self, sequence: Sequence, count: int) -> list[tuple[int, int, int, int]]:
        sequence.scheduled = min(sequence.scheduled + count, sequence.expected)
        sequence.expected += sequence.scheduled == sequence.expected
        changes = []
        while len(sequence.blocks) * BLOCK_SIZE < sequence.scheduled:
            block = self.free.pop()
            for group in range(self.num_groups):
                of_group = block if group == 0 else 121 - block
                changes.append((group, sequence.row, len(sequence.blocks), of_group))
            sequence.blocks.append(block)
        return changes


@pytest.fixture
def driver(worker: StandaloneWorker) -> Driver:
    return Driver(worker)


# --- tokens are right -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_steps_gives_each_request_its_own_tokens(data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, 2))
    worker = load(KVHashModel(CONFIG, KVHashOptions(num_groups=num_groups)))
    driver = Driver(worker, num_groups, seed=data.draw(st.integers(0, 99)))
    prompts = st.lists(st.integers(0, 511), min_size=1, max_size=20)
    sequences = [driver.start(row, data.draw(prompts)) for row in range(data.draw(st.integers(1, 4)))]
    free_rows = list(range(len(sequences), MAX_ROWS))
    for _ in range(data.draw(st.integers(1, 25))):
        places = [place for place, one in enumerate(sequences) if one.expected < 50]
        if not places:
            break
        chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
        driver.step({place: data.draw(st.integers(1, 9)) for place in chosen}, *sequences)
        while len(driver.in_flight) > data.draw(st.integers(0, 1)):
            driver.finish()
        if data.draw(st.integers(0, 9)) == 0:  # preempt one: it comes back in another row
            while driver.in_flight:
                driver.finish()
            victim = data.draw(st.sampled_from(sequences))
            driver.leave(victim)
            free_rows.append(victim.row)
            victim.row = free_rows.pop(data.draw(st.integers(0, len(free_rows) - 1)))
    while driver.in_flight:
        driver.finish()
    worker.close()
    for one in sequences:
        generated = one.ids[one.num_prompt :]
        assert generated == reference(one.ids[: one.num_prompt], len(generated), num_groups=num_groups)
    assert not any(done.error or done.failed for done in driver.done)


def test_a_step_counts_tokens_by_row_in_its_own_order(driver: Driver) -> None:
    a, b, c = (driver.start(row, [row, 7, 9]) for row in (5, 0, 3))
    done = driver.run({2: 3, 0: 2, 1: 3}, a, b, c)
    assert ints(done.num_new).tolist() == [1, 0, 1]
    assert ints(done.token_ids).tolist() == reference([3, 7, 9], 1) + reference([0, 7, 9], 1)


def test_two_steps_ahead_give_the_same_tokens(driver: Driver) -> None:
    a, b = driver.start(0, [1, 2, 3]), driver.start(1, [4, 5])
    driver.step({0: 3, 1: 2}, a, b)
    for _ in range(12):
        driver.step({1: 1, 0: 1}, a, b)
        driver.finish()
    assert a.ids[3:] == reference([1, 2, 3], 12)
    assert b.ids[2:] == reference([4, 5], 12)


def test_D01_a_seeded_row_gives_the_same_ids_whoever_joins_leaves_or_moves(driver: Driver) -> None:
    sampling, prompt = params(temperature=0.8, seed=42), [3, 1, 4, 1, 5]
    expected = list(prompt)
    for position in range(5, 21):
        number = float(uniforms(np.array([42], dtype=np.uint64), [position])[0])
        expected.append(choose(next_logits(expected), sampling, number))
    alone = driver.start(0, prompt, sampling)
    driver.run({0: 5}, alone)
    driver.decode(15, alone)
    crowded, unseeded, greedy = (
        driver.start(6, prompt, sampling),
        driver.start(1, [9], params(temperature=1.0)),
        driver.start(2, [8]),
    )
    driver.run({1: 1, 0: 2}, crowded, unseeded)
    driver.run({0: 3, 2: 1}, crowded, unseeded, greedy)
    driver.decode(4, greedy, crowded, unseeded)
    driver.decode(3, crowded, greedy)
    driver.leave(crowded)
    crowded.row = 3
    driver.run({0: 4, 1: 1}, crowded, unseeded)
    driver.run({0: 20, 1: 1}, crowded, unseeded)
    driver.decode(7, crowded)
    assert alone.ids == crowded.ids == expected


LEAKS = {
    "allowed_ids": {"allowed_ids": (70,)},
    "logit_bias": {"logit_bias": {70: 100.0}},
    "bad_words": {"bad_words": ((70,), (71,)), "allowed_ids": (70, 72)},
    "min_tokens": {"min_tokens": 30, "stop_ids": tuple(range(400))},
    "seed": {"temperature": 1.0, "seed": 77},
    "penalties": {"repetition_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    "logprobs": {"logprobs": 2, "prompt_logprobs": 1},
}


@pytest.mark.parametrize("name", LEAKS)
def test_D03_a_row_leaks_nothing_to_its_next_occupant(name: str, driver: Driver) -> None:
    first, mate = driver.start(2, [7, 8, 9], params(**LEAKS[name])), driver.start(4, [5])
    driver.run({0: 3, 1: 1}, first, mate)
    driver.decode(3, mate, first)
    driver.leave(first)
    second = driver.start(2, [1, 2])
    done = driver.run({1: 2, 0: 1}, mate, second)
    driver.decode(5, second, mate)
    assert done.logprobs is done.prompt_logprobs is None
    assert second.ids[2:] == reference([1, 2], 6)
    assert mate.ids[1:] == reference([5], 10)


def test_D14_penalties_and_bad_words_are_the_same_two_steps_ahead(driver: Driver) -> None:
    sampling = params(
        repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0, bad_words=tuple((i,) for i in range(400))
    )
    waiting, ahead = driver.start(0, [450, 451], sampling), driver.start(1, [450, 451], sampling)
    driver.run({0: 2}, waiting)
    driver.decode(20, waiting)
    driver.step({0: 2}, ahead)
    for _ in range(20):
        driver.step({0: 1}, ahead)
        driver.finish()
    driver.finish()
    assert waiting.ids == ahead.ids
    assert ahead.ids[2:] != reference([450, 451], 21)


def test_log_probabilities_are_those_of_the_model(driver: Driver) -> None:
    one = driver.start(3, [1, 2, 3], params(logprobs=2, prompt_logprobs=0))
    done = driver.run({0: 3}, one)
    assert done.logprobs is not None and done.prompt_logprobs is not None
    logits = next_logits([1, 2, 3]).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    assert ints(done.logprobs.positions).tolist() == [3]
    assert np.allclose(floats(done.logprobs.logprobs), expected[ints(done.logprobs.token_ids)], atol=1e-5)
    assert ints(done.prompt_logprobs.positions).tolist() == [1, 2]
    assert ints(done.prompt_logprobs.token_ids).tolist() == [2, 3]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_D13_a_row_with_bad_logits_fails_alone(value: float, driver: Driver, model: SpoiledModel) -> None:
    mates = [driver.start(row, [row + 1, 9]) for row in range(4)]
    driver.run(dict.fromkeys(range(4), 2), *mates)
    driver.decode(1, *mates)

    def spoil(logits: Floats, rows: Ints) -> None:
        logits[rows == 2, slice(None) if value == -np.inf else 5] = value

    model.spoil = spoil
    done = driver.run(dict.fromkeys(range(4), 1), *mates)
    assert [failure.row for failure in done.failed] == [2]
    assert (done.failed[0].error.kind, "position 3" in done.failed[0].error.message) == ("RequestFailed", True)
    assert ints(done.num_new).tolist() == [1, 1, 0, 1]
    model.spoil = None
    done = driver.run(dict.fromkeys(range(4), 1), *mates)
    assert (ints(done.num_new).tolist(), done.failed) == ([1, 1, 0, 1], ())
    for row, mate in enumerate(mates):
        assert mate.ids[2:] == reference([row + 1, 9], 2 if row == 2 else 4)


def test_a_failed_row_works_again_once_it_is_bound_anew(driver: Driver, model: SpoiledModel) -> None:
    one = driver.start(0, [1, 2])
    model.spoil = lambda logits, rows: logits.fill(np.nan)
    driver.run({0: 2}, one)
    model.spoil = None
    driver.leave(one)
    driver.run({0: 2}, one)
    driver.decode(2, one)
    assert one.ids[2:] == reference([1, 2], 3)


def test_D13_a_prompt_with_bad_logits_fails_once_and_computes_no_further(driver: Driver, model: SpoiledModel) -> None:
    asks, mate = driver.start(1, [1, 2, 3, 4], params(prompt_logprobs=1)), driver.start(0, [5, 6])
    model.spoil = lambda logits, rows: logits.__setitem__(rows == 1, np.nan)
    done = driver.run({0: 4, 1: 2}, asks, mate)
    assert [failure.row for failure in done.failed] == [1]
    assert ints(done.num_new).tolist() == [0, 1]
    assert driver.run({0: 1, 1: 1}, asks, mate).failed == ()
    assert (asks.ids, mate.ids[2:]) == ([1, 2, 3, 4], reference([5, 6], 2))


def test_D06_a_row_whose_tokens_are_all_masked_fails(driver: Driver) -> None:
    masked, mate = driver.start(0, [1], params(allowed_ids=(7,), bad_words=((7,),))), driver.start(1, [1])
    done = driver.run({0: 1, 1: 1}, masked, mate)
    assert [failure.row for failure in done.failed] == [0]
    assert "allowed_token_ids" in done.failed[0].error.message
    assert (masked.ids, mate.ids[1:]) == ([1], reference([1], 1))


def test_a_model_that_raises_fails_its_step_and_those_behind_it_until_a_reset(
    driver: Driver, model: SpoiledModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = driver.start(0, [1, 2])
    driver.run({0: 2}, one)
    model.error = ZeroDivisionError("attention")
    driver.step({0: 1}, one)
    driver.step({0: 1}, one)
    failed, void = driver.finish(), driver.finish()
    assert failed.error is not None and failed.error.message == "step 2 failed: ZeroDivisionError: attention"
    assert void.error is not None and "step 2" in void.error.message
    assert failed.num_new == failed.token_ids == void.token_ids == b""
    assert "ZeroDivisionError" in caplog.text
    model.error = None
    driver.leave(one)
    driver.run({0: len(one.ids)}, one, reset=True)
    driver.decode(2, one)
    assert one.ids[2:] == reference([1, 2], 4)


def test_a_model_error_keeps_its_kind(driver: Driver, model: SpoiledModel) -> None:
    model.error = ModelFileDamaged("weights")
    done = driver.run({0: 1}, driver.start(0, [1]))
    assert done.error is not None and isinstance(restore(done.error), ModelFileDamaged)


def test_a_step_in_which_no_row_has_anything_gives_nothing(driver: Driver, model: SpoiledModel) -> None:
    one = driver.start(0, [1, 2])
    model.spoil = lambda logits, rows: logits.fill(np.nan)
    driver.run({0: 2}, one)
    model.error = AssertionError("the model runs on no tokens")
    done = driver.run({0: 1}, one)
    assert (ints(done.num_new).tolist(), done.token_ids, done.error) == ([0], b"", None)


# --- thread, clock, end -----------------------------------------------------------------------------------------------


class SlowModel(SpoiledModel):
    """Computes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__(CONFIG, KVHashOptions())
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_stop = threading.Event()
        self.num_forwards = 0
        self.stops_at: int | None = None
        self.num_closes = 0
        self.load_error: Exception | None = None

    def load(self) -> RunnerReady:
        if self.load_error:
            raise self.load_error
        return super().load()

    def forward(self, batch: Batch) -> None:
        self.has_begun.set()
        self.may_go_on.wait(HANG_GUARD_S)
        self.num_forwards += 1
        if self.num_forwards == self.stops_at:
            self.may_stop.wait(HANG_GUARD_S)
        super().forward(batch)

    def close(self) -> None:
        self.num_closes += 1
        super().close()


ONE_TOKEN = RunStep(
    1, pack_ints([0]), pack_ints([1]), (BindRow(0, pack_ints([1]), 1, 0, GREEDY),), pack_ints([0, 0, 0, 5])
)


def test_submit_returns_at_once_and_wakes_when_it_is_done() -> None:
    model, woken = SlowModel(), threading.Event()
    worker = load(model)
    handle = worker.submit(ONE_TOKEN, woken.set)
    assert model.has_begun.wait(HANG_GUARD_S)
    assert not handle.done()
    assert not woken.is_set()
    model.may_go_on.set()
    assert woken.wait(HANG_GUARD_S)
    assert handle.done()
    assert ints(handle.result().token_ids).tolist() == reference([1], 1)
    worker.close()


def test_a_result_is_handed_over_while_the_next_step_computes() -> None:
    model, woken = SlowModel(), threading.Event()
    worker = load(model)
    first = worker.submit(ONE_TOKEN, woken.set)
    second = worker.submit(RunStep(2, pack_ints([0]), pack_ints([1])), lambda: None)
    assert model.has_begun.wait(HANG_GUARD_S)
    model.stops_at = 2
    model.may_go_on.set()
    assert woken.wait(HANG_GUARD_S)
    assert first.done()
    assert not second.done()
    model.may_stop.set()
    worker.close()
    assert second.done()


def test_a_step_tells_when_it_started_and_ended() -> None:
    times = iter([10.0, 12.5])
    worker = StandaloneWorker(KVHashModel(CONFIG, KVHashOptions()), MAX_ROWS, BLOCK_SIZE, lambda: next(times))
    worker.load()
    done = worker.execute(ONE_TOKEN)
    worker.close()
    assert (done.started, done.ended) == (10.0, 12.5)


def test_an_error_while_loading_is_raised_and_the_worker_closes() -> None:
    model = SlowModel()
    model.load_error = ModelFileDamaged("header")
    worker = StandaloneWorker(model, MAX_ROWS, BLOCK_SIZE)
    with pytest.raises(ModelFileDamaged, match="header"):
        worker.load()
    worker.close()
    assert model.num_closes == 1


def test_closing_twice_closes_the_model_once_and_later_steps_are_answered() -> None:
    model = SlowModel()
    worker = load(model)
    worker.close()
    worker.close()
    assert model.num_closes == 1
    done = worker.submit(ONE_TOKEN, lambda: None).result()
    assert done.error is not None and isinstance(restore(done.error), EngineClosed)


def test_a_worker_that_never_started_closes_its_model_once() -> None:
    model = SlowModel()
    worker = StandaloneWorker(model, MAX_ROWS, BLOCK_SIZE)
    worker.close()
    worker.close()
    assert model.num_closes == 1


def test_closing_does_not_wait_for_ever_and_wakes_nobody_afterwards() -> None:
    model, wakes = SlowModel(), []
    worker = StandaloneWorker(model, MAX_ROWS, BLOCK_SIZE, close_timeout_s=0.01)
    worker.load()
    running = worker.submit(ONE_TOKEN, lambda: wakes.append(1))
    queued = worker.submit(ONE_TOKEN, lambda: wakes.append(2))
    assert model.has_begun.wait(HANG_GUARD_S)
    worker.close()
    assert not running.done()
    model.may_go_on.set()
    error = queued.result().error
    assert error is not None and error.kind == "EngineClosed"
    assert running.result().error is None
    assert wakes == []

"""Runner sim: a device clock."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.core.columns import ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Runner
from headrace.core.messages import BindRow, RowSampling, RunStep
from headrace.core.providers import RunnerContext
from headrace.runners.sim import FIRST_TOKEN, SimOptions, build
from headrace.runners.timers import VirtualClock

HANG_GUARD_S = 60
CONFIG = EngineConfig(max_model_len=256, num_kv_blocks=64)
COSTS = SimOptions(base_s=1.0, per_token_s=0.1, per_row_s=0.01, per_context_token_s=0.0)


def bind(row: int, length: int, **sampling: Any) -> BindRow:
    return BindRow(row, pack_ints([7] * length), length, 0, RowSampling(0.0, 0, 1.0, 0.0, 0, **sampling))


def step(number: int, counts: dict[int, int], *bound: BindRow, reset: bool = False) -> RunStep:
    return RunStep(number, pack_ints(list(counts)), pack_ints(list(counts.values())), bound, reset=reset)


def nobody() -> None:
    """Wake nobody."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


@pytest.fixture
def runner(clock: VirtualClock) -> Runner:
    return build(RunnerContext(CONFIG, Path(), 4, clock), COSTS)


def test_a_step_ends_a_computed_time_after_its_submission(runner: Runner, clock: VirtualClock) -> None:
    wakes: list[float] = []
    handle = runner.submit(step(1, {0: 20, 2: 10}, bind(0, 20), bind(2, 30)), lambda: wakes.append(clock()))
    clock.advance(104.01)
    assert not handle.done()
    clock.advance(104.5)
    done = handle.result()
    assert handle.done()
    assert (done.started, done.ended) == (100.0, pytest.approx(100 + 1.0 + 30 * 0.1 + 2 * 0.01))
    assert wakes == [done.ended]


def test_a_step_starts_when_the_one_before_ends(runner: Runner, clock: VirtualClock) -> None:
    first = runner.submit(step(1, {0: 10}, bind(0, 10)), nobody)
    clock.advance(100.5)
    second = runner.submit(step(2, {0: 1}), nobody)
    clock.advance(200.0)
    third = runner.submit(step(3, {0: 1}), nobody)
    clock.advance(300.0)
    assert second.result().started == first.result().ended
    assert third.result().started == 200.0


def test_a_token_that_reads_more_context_costs_more() -> None:
    costs = SimOptions(base_s=0, per_token_s=0, per_row_s=0, per_context_token_s=1.0)
    clock = VirtualClock()
    runner = build(RunnerContext(CONFIG, Path(), 4, clock), costs)
    prefill, decode = runner.submit(step(1, {0: 3}, bind(0, 3)), nobody), runner.submit(step(2, {0: 1}), nobody)
    clock.advance(20)
    assert prefill.result().ended == 1 + 2 + 3
    assert decode.result().ended - decode.result().started == 4


def test_rows_are_counted_as_by_any_runner(runner: Runner, clock: VirtualClock) -> None:
    steps = [
        step(1, {0: 3, 1: 2}, bind(0, 3), bind(1, 4)),
        step(2, {1: 9, 0: 1}),
        step(3, {0: 1, 1: 1, 2: 1}, bind(2, 1)),
    ]
    handles = [runner.submit(each, nobody) for each in steps]
    clock.advance(1000.0)
    assert [ints(handle.result().num_new).tolist() for handle in handles] == [[1, 0], [1, 1], [1, 1, 1]]


def test_tokens_are_the_same_each_time_and_no_special_ids(clock: VirtualClock) -> None:
    runner = build(RunnerContext(CONFIG, Path(), 4, clock), SimOptions(vocab_size=110))
    handles = [runner.submit(step(1, {0: 5}, bind(0, 5)), nobody)]
    handles += [runner.submit(step(number, {0: 1}), nobody) for number in range(2, 30)]
    clock.advance(1000.0)
    tokens = [token for handle in handles for token in ints(handle.result().token_ids).tolist()]
    assert tokens == [FIRST_TOKEN + position % 10 for position in range(5, 34)]


def test_a_row_that_asks_for_logprobs_fails_alone(runner: Runner, clock: VirtualClock) -> None:
    handle = runner.submit(step(1, {0: 2, 1: 2}, bind(0, 2, logprobs=1), bind(1, 2)), nobody)
    clock.advance(1000.0)
    done = handle.result()
    assert [failure.row for failure in done.failed] == [0]
    assert ints(done.num_new).tolist() == [0, 1]


def test_a_step_that_makes_no_sense_is_an_error_and_voids_later_ones(runner: Runner, clock: VirtualClock) -> None:
    bad, void = runner.submit(step(1, {99: 1}), nobody), runner.submit(step(2, {0: 1}), nobody)
    again = runner.submit(step(3, {0: 2}, bind(0, 2), reset=True), nobody)
    clock.advance(1000.0)
    assert bad.result().error is not None
    assert void.result().error is not None
    assert ints(again.result().num_new).tolist() == [1]


def test_the_real_clock_wakes_at_the_deadline_not_before() -> None:
    runner = build(RunnerContext(CONFIG, Path(), 4, time.monotonic), SimOptions(base_s=0.01))
    runner.load()
    woken = threading.Event()
    handle = runner.submit(step(1, {0: 1}, bind(0, 1)), woken.set)
    assert woken.wait(HANG_GUARD_S)
    assert handle.result().ended <= time.monotonic()
    runner.close()


def test_closing_ends_steps_in_flight_with_an_error_and_wakes_nobody() -> None:
    runner = build(RunnerContext(CONFIG, Path(), 4, time.monotonic), SimOptions(base_s=HANG_GUARD_S))
    wakes: list[int] = []
    handle = runner.submit(step(1, {0: 1}, bind(0, 1)), lambda: wakes.append(1))
    runner.close()
    runner.close()
    for each in (handle, runner.submit(step(2, {0: 1}), nobody)):
        error = each.result().error
        assert error is not None and error.kind == "EngineClosed"
    assert wakes == []


def test_closing_leaves_other_calls_of_a_virtual_clock_alone(runner: Runner, clock: VirtualClock) -> None:
    calls: list[str] = []
    handle = runner.submit(step(1, {0: 1}, bind(0, 1)), lambda: calls.append("step"))
    clock.call_at(150.0, lambda: calls.append("other"))
    runner.close()
    clock.advance(200.0)
    assert calls == ["other"]
    assert handle.result().error is not None


@pytest.mark.parametrize("options", [{"base_s": -1.0}, {"per_row_s": float("nan")}, {"vocab_size": 100}])
def test_options_out_of_their_limits_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SimOptions(**options)

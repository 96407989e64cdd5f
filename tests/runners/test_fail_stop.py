"""What follows a failed step."""

import pytest

from headrace.core.columns import pack_ints
from headrace.core.messages import RunStep, StepDone
from headrace.runners.fail_stop import FailStop, closed


def step(number: int, reset: bool = False) -> RunStep:
    return RunStep(number, pack_ints([0]), pack_ints([1]), reset=reset)


def sound(step: RunStep) -> StepDone:
    return StepDone(step.step, num_new=b"1234")


def broken(step: RunStep) -> StepDone:
    raise ZeroDivisionError("no")


def test_a_sound_step_gets_its_times() -> None:
    times = iter([1.0, 2.5])
    done = FailStop(lambda: next(times)).run(step(1), sound)
    assert (done.num_new, done.started, done.ended) == (b"1234", 1.0, 2.5)


def test_a_failed_step_voids_those_behind_it_until_one_resets(caplog: pytest.LogCaptureFixture) -> None:
    fail_stop = FailStop(lambda: 0.0)
    failed = fail_stop.run(step(1), broken)
    assert failed.error is not None and failed.error.message == "step 1 failed: ZeroDivisionError: no"
    for number in (2, 3):
        void = fail_stop.run(step(number), sound)
        assert void.error is not None and "step 1 before it failed" in void.error.message
        assert (void.step, void.num_new) == (number, b"")
    assert fail_stop.run(step(4, reset=True), sound).error is None
    assert fail_stop.run(step(5), sound).error is None
    assert "Traceback" in caplog.text


def test_a_closed_runner_answers_with_the_step_number() -> None:
    done = closed(7)
    assert done.step == 7
    assert done.error is not None and done.error.kind == "EngineClosed"

"""What every runner does about a step that fails, and about those behind it."""

import logging
from collections.abc import Callable

from msgspec.structs import replace

from headrace.core.errors import EngineClosed, ErrorInfo, describe
from headrace.core.messages import RunStep, StepDone
from headrace.core.providers import Clock

_log = logging.getLogger(__name__)


class FailStop:
    """Runs steps one after the other; once one fails, all are void until a step resets the runner."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed_step: int | None = None

    def run(self, step: RunStep, compute: Callable[[RunStep], StepDone]) -> StepDone:
        """Return what `compute` gives, with its times; if it raises, or an earlier step did, StepDone.error."""
        started = self._clock()
        if step.reset:
            self._failed_step = None
        if self._failed_step is not None:
            error = ErrorInfo("RequestFailed", f"step {step.step} is void: step {self._failed_step} before it failed")
            return StepDone(step.step, error=error, started=started, ended=started)
        try:
            done = compute(step)
        except Exception as error:
            _log.exception("step %d failed", step.step)
            self._failed_step = step.step
            info = describe(error)
            done = StepDone(step.step, error=replace(info, message=f"step {step.step} failed: {info.message}"))
        return replace(done, started=started, ended=self._clock())


def closed(step: int) -> StepDone:
    """Answer a step that a closed runner doesn't compute, by its number."""
    return StepDone(step, error=describe(EngineClosed("the runner was closed")))

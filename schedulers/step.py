"""A step between scheduling and its result, and the output that is made from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.columns import pack_ints
from headrace.core.messages import BindRow, Bound, Ended, RunStep, StepDone, StepOutput
from headrace.schedulers.request import Request


@dataclass(slots=True, eq=False)
class Entry:
    """One row of a step."""

    request: Request
    row: int
    num_tokens: int
    end: int
    """Tokens of the request that are computed after the step."""
    samples: bool
    bind: BindRow | None = None
    is_void: bool = False
    """Its tokens rest on K/V that turned out unsound: they are dropped."""


@dataclass(slots=True, eq=False)
class Step:
    """A step that is being made, or in flight."""

    number: int
    limit: int
    """Tokens it may compute."""
    budget: int
    """Tokens left."""
    entries: dict[int, Entry] = field(default_factory=dict)
    """By row, in the order they were scheduled."""
    has_preempted: bool = False
    is_void: bool = False
    """A step before it failed: it comes back as an error that is nobody's."""

    def void(self) -> None:
        """Make the results of this step in flight worthless."""
        self.is_void = True
        for entry in self.entries.values():
            entry.is_void = True

    def message(self, tables: bytes, reset: bool) -> RunStep:
        """Return the step as the runner gets it."""
        entries = self.entries.values()
        return RunStep(
            step=self.number,
            rows=pack_ints(list(self.entries)),
            num_tokens=pack_ints([entry.num_tokens for entry in entries]),
            bound=tuple(entry.bind for entry in entries if entry.bind),
            tables=tables,
            reset=reset,
        )


class OutputBuilder:
    """Collects what a step gave, request by request."""

    def __init__(self) -> None:
        self._bound: list[Bound] = []
        self._rows: list[int] = []
        self._num_new: list[int] = []
        self._token_ids: list[int] = []
        self._ended: list[Ended] = []

    def add_tokens(self, request: Request, row: int, token_ids: Sequence[int]) -> None:
        """Report a request's new tokens, and the request itself before its first ones."""
        if token_ids or request.admit.sampling.prompt_logprobs is not None:
            self._announce(request, row)
        if token_ids:
            self._rows.append(row)
            self._num_new.append(len(token_ids))
            self._token_ids += token_ids

    def add_ended(self, ended: Ended) -> None:
        """Report a request's end."""
        self._ended.append(ended)

    def _announce(self, request: Request, row: int) -> None:
        if request.announced_row == row:
            return
        assert request.admitted is not None
        text = b"" if request.text_sent else request.admit.text
        self._bound.append(Bound(row, request.id, request.admit.num_prompt, request.num_cached, request.admitted, text))
        request.announced_row, request.text_sent = row, True

    def build(self, done: StepDone) -> StepOutput | None:
        """Return the message, None if it would say nothing."""
        if not (self._bound or self._rows or self._ended):
            return None if done.prompt_logprobs is None else StepOutput(prompt_logprobs=done.prompt_logprobs)
        return StepOutput(
            bound=tuple(self._bound),
            rows=pack_ints(self._rows),
            num_new=pack_ints(self._num_new),
            token_ids=pack_ints(self._token_ids),
            logprobs=done.logprobs,
            prompt_logprobs=done.prompt_logprobs,
            ended=tuple(self._ended),
        )

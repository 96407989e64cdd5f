"""A step between scheduling and its result, and the output that is made from it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.columns import ints, pack_ints
from headrace.core.messages import Bound, Ended, RunStep, StepDone, StepOutput
from headrace.schedulers.request import Request


@dataclass(slots=True, eq=False)
class Step(ABC):
    """A step that is being made, or in flight; schedulers add its rows in a form of their own."""

    number: int
    limit: int
    """Tokens it may compute."""
    budget: int
    """Tokens left."""
    num_reads: int = 0
    """K/V that queries of the rows that were entered one by one see."""
    has_chunk: bool = False
    """A prompt's chunk, or a chunk of what is computed again, is in it."""
    holds_up: bool = False
    """Rows that decode are in it beside a chunk, and have to wait for its end."""
    has_preempted: bool = False
    is_void: bool = False
    """A step before it failed: it comes back as an error that is nobody's."""

    def reads(self) -> int:
        """Count the K/V that its queries see, of all rows."""
        return self.num_reads

    @abstractmethod
    def __len__(self) -> int:
        """Count its rows."""

    @abstractmethod
    def message(self, tables: bytes, reset: bool) -> RunStep:
        """Return the step as the runner gets it."""


def num_drafted(done: StepDone) -> list[int]:
    """Return how many drafts each row of a step had."""
    return ints(done.num_drafted).tolist() if done.num_drafted else [0] * (len(done.num_new) // 4)


class OutputBuilder:
    """Collects what a step gave, in the order of its rows."""

    def __init__(self) -> None:
        self._bound: list[Bound] = []
        self._columns = (b"", b"", b"")
        self._rows: list[int] = []
        self._num_new: list[int] = []
        self._token_ids: list[int] = []
        self._ended: list[Ended] = []

    def announce(self, request: Request, row: int, token_ids: Sequence[int]) -> None:
        """Report a request that is new in its row, before its first tokens there."""
        if request.announced_row == row or not (token_ids or request.admit.sampling.prompt_logprobs is not None):
            return
        assert request.admitted is not None
        text = b"" if request.text_sent else request.admit.text
        self._bound.append(Bound(row, request.id, request.admit.num_prompt, request.num_cached, request.admitted, text))
        request.announced_row, request.text_sent = row, True

    def put_columns(self, rows: bytes, num_new: bytes, token_ids: bytes) -> None:
        """Report the new tokens of all rows that come before those that are added one by one."""
        self._columns = (rows, num_new, token_ids)

    def add_tokens(self, row: int, token_ids: Sequence[int]) -> None:
        """Report a row's new tokens."""
        if token_ids:
            self._rows.append(row)
            self._num_new.append(len(token_ids))
            self._token_ids += token_ids

    def add_ended(self, ended: Ended) -> None:
        """Report a request's end."""
        self._ended.append(ended)

    def build(self, done: StepDone) -> StepOutput | None:
        """Return the message, None if it would say nothing."""
        rows, num_new, token_ids = self._columns
        if self._rows:
            rows += pack_ints(self._rows)
            num_new += pack_ints(self._num_new)
            token_ids += pack_ints(self._token_ids)
        if not (self._bound or rows or self._ended):
            return None if done.prompt_logprobs is None else StepOutput(prompt_logprobs=done.prompt_logprobs)
        return StepOutput(
            bound=tuple(self._bound),
            rows=rows,
            num_new=num_new,
            token_ids=token_ids,
            logprobs=done.logprobs,
            prompt_logprobs=done.prompt_logprobs,
            ended=tuple(self._ended),
        )

"""What works on a runner's rows beside its model: logits processors, and proposers of drafts."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.core.columns import Floats, Ints
from headrace.core.errors import ConfigError
from headrace.core.messages import RowSampling, RunnerReady


class LogitsProcessor(Protocol):
    """Changes one request's logits before its token is chosen. Owner: one row of a runner, on its compute thread."""

    def __call__(self, token_ids: Ints, num_prompt: int, logits: Floats) -> Floats | None:
        """Change the logits of the next token; minus infinity rules a token out.

        token_ids: (n,) int32, read-only, valid during the call: the sequence so far, its first num_prompt the prompt.
        logits: (vocab_size,) float32 after masks and bias and before penalties, temperature and cuts; may be changed in
        place. Returns the (vocab_size,) float32 logits to use; None: those given, as they are now.

        The same arguments must give the same logits: a request that was preempted or went through a restart goes on
        with a new object, and ids that it was shown may turn out not to be the request's. What it remembers between
        calls is a cache. Called for each token that is sampled. What it raises, a wrong shape, NaN, plus infinity, or
        nothing left to sample ends its own request with RequestFailed.
        """


ProcessorBuilder = Callable[[str, dict[str, Any], int], LogitsProcessor]
"""build_processor(name, arguments, vocab_size). Raises HeadraceError, which ends the request that names it."""


def no_processors(name: str, arguments: dict[str, Any], vocab_size: int) -> LogitsProcessor:
    """Refuse every logits processor: the runner was built by hand, without plugins."""
    raise ConfigError(f"logits_processors names {name!r}, but this runner was built without plugins")


class RowState(Protocol):
    """What a runner knows of its rows, as proposers see it: read only."""

    token_ids: Ints
    """(max_rows, longest sequence): of each row, the first num_ids count."""
    num_ids: Ints
    """(max_rows,) known tokens."""
    num_prompt: Ints
    """(max_rows,) of them, those of the prompt."""
    tables: Ints
    """(num_groups, max_rows, max_blocks) block ids: there is room for the drafts asked for."""
    sampling: list[RowSampling]
    """By row."""


class Proposer(Protocol):
    """Guesses next tokens, which the runner verifies in the same step: a wrong guess costs time, never a wrong token.

    Lives in the runner's process, called on its compute thread.
    """

    def load(self, facts: RunnerReady) -> None:
        """Get ready beside the runner's model, whose facts these are. Raises ModelError, ConfigError."""

    def bound(self, row: int) -> None:
        """Note that a row has a new request: what was known of it is void."""

    def propose(self, state: RowState, rows: Ints, counts: Ints) -> Sequence[Ints]:
        """Return drafts for each of these rows, at most so many (at least 1 each), which go on behind its known ids."""

    def close(self) -> None:
        """Release everything; idempotent."""

"""Runner `native`: C++ kernels behind one call per step, on the file's own numbers. No torch."""

from typing import TYPE_CHECKING

import numpy as np

from headrace.core.columns import Floats, Ints
from headrace.core.interfaces import Batch
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext
from headrace.runners.batch import WorkerState
from headrace.runners.native.options import NativeOptions
from headrace.runners.sampler import Advanced, Sampled

if TYPE_CHECKING:
    from headrace.runners.native.session import Session


class NativeModel:
    """A StepModel in the native library. Owner: the compute thread of its worker.

    Every row's logits are bitwise independent of batch mates, chunks, prefix hits and the number of threads.
    """

    def __init__(self, context: RunnerContext, options: NativeOptions) -> None:
        self._context, self._options = context, options
        self._session: Session | None = None
        self._places: Ints = np.zeros(0, dtype=np.int32)
        """Places in the flat token list that tokens are sampled at."""
        self._logits: Floats | None = None
        """Theirs, computed within the step; handed out once."""

    def load(self) -> RunnerReady:
        """Build or load the library, read the weights, set up K/V storage. Raises ModelError, ConfigError."""
        from headrace.runners.native.session import Session

        self._session = Session(self._context, self._options)
        return self._session.ready

    def forward(self, batch: Batch) -> None:
        """Write K/V of all tokens, and compute their hidden states and the logits of rows that sample."""
        self._places = batch.logit_places
        self._logits = self._loaded().forward(batch)

    def logits(self, indices: Ints) -> Floats:
        """Return (len(indices), vocab_size) float32 logits at these places of the last forward's flat token list."""
        if self._logits is not None and (indices is self._places or np.array_equal(indices, self._places)):
            found, self._logits = self._logits, None
            return found
        return self._loaded().logits(indices)

    def sample(self, logits: Floats, state: WorkerState, rows: Ints) -> Sampled:
        """Choose tokens, as runners/sampler.py's function of this name does."""
        return self._loaded().sampler.sample(logits, state, rows)

    def advance(self, state: WorkerState, rows: Ints, asked: Ints) -> Advanced:
        """Run a step of these rows, as worker.Advance says."""
        return self._loaded().advance(state, rows, asked)

    def close(self) -> None:
        """Give everything back; idempotent."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _loaded(self) -> "Session":
        assert self._session is not None, "a model is loaded before it runs, and not used after close()"
        return self._session

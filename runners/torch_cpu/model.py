"""Runner `torch`: any supported model on the CPU in plain torch; the reference that other runners are compared with."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.core.columns import Floats, Ints
from headrace.core.interfaces import Batch
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext

if TYPE_CHECKING:
    from headrace.runners.torch_cpu.session import Session


class TorchModel:
    """A StepModel in plain torch. Owner: the compute thread of its worker, on which torch is imported too.

    float32: greedy tokens are those of transformers, log probabilities within 1e-4 of theirs. bfloat16 (weights,
    activations and K/V): log probabilities are as far from float32's as in transformers, less than 0.1 on average and
    less than 0.25 for the likeliest token. deterministic: logits of a row are bitwise independent of batch mates,
    chunks and prefix hits, on one machine with one number of threads.
    """

    def __init__(self, context: RunnerContext) -> None:
        self._context = context
        self._session: Session | None = None

    def load(self) -> RunnerReady:
        """Import torch, load the model, set up K/V storage. Sets torch's number of threads for this process.

        Raises ModelError, ConfigError.
        """
        started = self._context.clock()
        from headrace.runners.torch_cpu.session import Session

        imported = self._context.clock()
        self._session = Session(self._context)
        ready = self._session.ready
        return replace(ready, timings={"import": imported - started, **ready.timings})

    def forward(self, batch: Batch) -> None:
        """Write K/V of all tokens and compute their hidden states, kept until the next call."""
        self._loaded().forward(batch)

    def logits(self, indices: Ints) -> Floats:
        """Return (len(indices), vocab_size) float32 logits at these places of the last forward's flat token list."""
        return self._loaded().logits(indices)

    def close(self) -> None:
        """Let weights and storage go; idempotent."""
        self._session = None

    def _loaded(self) -> "Session":
        assert self._session is not None, "a model is loaded before it runs, and not used after close()"
        return self._session

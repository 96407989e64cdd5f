"""Logits processors of plugins, held to their contract: whatever one does wrong is an error that names its plugin."""

import numpy as np

from headrace.core.columns import Floats, Ints
from headrace.core.errors import RequestFailed
from headrace.core.extensions import LogitsProcessor


class GuardedProcessor:
    """Calls a plugin's logits processor and checks what it gives. Owner: as the processor's."""

    def __init__(self, who: str, processor: LogitsProcessor) -> None:
        self._who = who
        self._processor = processor

    def __call__(self, token_ids: Ints, num_prompt: int, logits: Floats) -> Floats:
        """Return the changed logits, the highest of them finite. Raises RequestFailed naming the plugin."""
        token_ids = token_ids.view()
        token_ids.flags.writeable = False
        try:
            returned = self._processor(token_ids, num_prompt, logits)
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}") from error
        changed = logits if returned is None else returned
        if not isinstance(changed, np.ndarray) or changed.shape != logits.shape or changed.dtype != logits.dtype:
            raise self._failed(f"returned {_kind(changed)}, must be None or float32 of shape {logits.shape}")
        highest = changed.max()
        if not np.isfinite(highest):
            raise self._failed("left no token to sample" if highest < 0 else f"made a logit {highest}")
        return changed

    def _failed(self, reason: str) -> RequestFailed:
        return RequestFailed(f"{self._who} {reason}")


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"

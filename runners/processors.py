"""The logits processors of one request, built when it gets its row."""

from typing import Any

from headrace.core.columns import Floats, Ints
from headrace.core.errors import HeadraceError, RequestFailed
from headrace.core.extensions import LogitsProcessor, ProcessorBuilder
from headrace.core.messages import RowSampling


def build_processors(sampling: RowSampling, vocab_size: int, build: ProcessorBuilder) -> tuple[LogitsProcessor, ...]:
    """Build what a request names, in its order. Raises nothing: one that can't be built fails its row when called."""
    named = sampling.logits_processors.items()
    return tuple(_build(name, arguments, vocab_size, build) for name, arguments in named)


def _build(name: str, arguments: dict[str, Any], vocab_size: int, build: ProcessorBuilder) -> LogitsProcessor:
    try:
        return build(name, arguments, vocab_size)
    except HeadraceError as error:
        return _Unbuilt(str(error))
    except Exception as error:  # such as an option's own check that fails
        return _Unbuilt(f"logits processor {name!r} can't be built: {type(error).__name__}: {error}")


class _Unbuilt:
    """Stands in for a processor that couldn't be built, so that its request alone fails."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, token_ids: Ints, num_prompt: int, logits: Floats) -> Floats:
        raise RequestFailed(self._reason)

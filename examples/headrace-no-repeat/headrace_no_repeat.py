"""A logits processor for Headrace: no sequence of n tokens comes twice."""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from headrace.core.columns import Floats, Ints
from headrace.core.providers import ProcessorContext, Provider


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request says: logits_processors={"no-repeat": {"size": 3}}."""

    size: Annotated[int, Meta(ge=1)]
    """Tokens of a sequence that must not come twice."""
    counts_prompt: bool = True
    """Sequences of the prompt must not come again either."""


class NoRepeat:
    """Rules out every token that would end a sequence seen before, as transformers' no_repeat_ngram_size does."""

    def __init__(self, options: Options) -> None:
        self._size = options.size
        self._counts_prompt = options.counts_prompt

    def __call__(self, token_ids: Ints, num_prompt: int, logits: Floats) -> None:
        """Set the logits of those tokens to minus infinity, in place."""
        ids = token_ids if self._counts_prompt else token_ids[num_prompt:]
        if len(ids) < self._size:
            return
        sequences = np.lib.stride_tricks.sliding_window_view(ids, self._size)
        begun = ids[len(ids) - self._size + 1 :]
        is_begun = (sequences[:, :-1] == begun).all(axis=1)
        logits[sequences[is_begun, -1]] = -np.inf


def build(context: ProcessorContext, options: Options) -> NoRepeat:
    """Build the processor of one request."""
    return NoRepeat(options)


def headrace_logits_processors() -> list[Provider]:
    """Provide `no-repeat`."""
    return [Provider("no-repeat", build, Options, summary="no sequence of n tokens comes twice")]

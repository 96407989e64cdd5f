"""Changes to one row's logits before its token is chosen: masks, bias, plugins, penalties; other rows keep theirs."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.extensions import LogitsProcessor
from headrace.core.messages import RowSampling

_MASKED = np.float32(-np.inf)
Ids = NDArray[np.intp]


@dataclass(slots=True, frozen=True)
class Adjustments:
    """What one request does to its logits, made ready once when its row is bound."""

    allowed: Ids | None
    bad_ids: Ids
    """Bad words of one token: always masked."""
    bad_phrases: tuple[tuple[int, ...], ...]
    min_tokens: int
    stop_ids: Ids
    bias_ids: Ids
    bias: Floats
    repetition: np.float32
    presence: np.float32
    frequency: np.float32
    processors: tuple[LogitsProcessor, ...] = ()

    @classmethod
    def of(cls, sampling: RowSampling, processors: tuple[LogitsProcessor, ...] = ()) -> Self | None:
        """Prepare a request's adjustments; None where it changes nothing."""
        has_penalty = (
            sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        )
        has_mask = sampling.allowed_ids is not None or sampling.bad_words or sampling.min_tokens > 0
        if not (has_penalty or has_mask or sampling.logit_bias or processors):
            return None
        return cls(
            allowed=None if sampling.allowed_ids is None else _ids(sampling.allowed_ids),
            bad_ids=_ids([word[0] for word in sampling.bad_words if len(word) == 1]),
            bad_phrases=tuple(word for word in sampling.bad_words if len(word) > 1),
            min_tokens=sampling.min_tokens,
            stop_ids=_ids(sampling.stop_ids),
            bias_ids=_ids(list(sampling.logit_bias)),
            bias=np.array(list(sampling.logit_bias.values()), dtype=np.float32),
            repetition=np.float32(sampling.repetition_penalty),
            presence=np.float32(sampling.presence_penalty),
            frequency=np.float32(sampling.frequency_penalty),
            processors=processors,
        )

    def apply(self, logits: Floats, token_ids: Ints, num_prompt: int) -> Floats:
        """Return changed logits; those given stay as they are.

        logits: (vocab_size,) of the next token. token_ids: the whole sequence so far, the first num_prompt its prompt.
        In this order: allowed ids, bad words, stop ids before min_tokens, bias, logits processors, repetition,
        frequency, presence. Raises RequestFailed where a processor does.
        """
        output = token_ids[num_prompt:]
        adjusted = self._masked(logits, output)
        adjusted[self.bias_ids] += self.bias
        for process in self.processors:
            changed = process(token_ids, num_prompt, adjusted)
            adjusted = adjusted if changed is None else changed
        self._penalise(adjusted, token_ids, output)
        return adjusted

    def _masked(self, logits: Floats, output: Ints) -> Floats:
        if self.allowed is None:
            adjusted = logits.copy()
        else:
            adjusted = np.full_like(logits, _MASKED)
            adjusted[self.allowed] = logits[self.allowed]
        adjusted[self.bad_ids] = _MASKED
        if self.bad_phrases:
            adjusted[completing(self.bad_phrases, output)] = _MASKED
        if len(output) < self.min_tokens:
            adjusted[self.stop_ids] = _MASKED
        return adjusted

    def _penalise(self, adjusted: Floats, token_ids: Ints, output: Ints) -> None:
        """Penalise in place: repetition what prompt and output hold, frequency and presence what the output holds."""
        if self.repetition != 1:
            seen = adjusted[token_ids]
            adjusted[token_ids] = np.where(seen > 0, seen / self.repetition, seen * self.repetition)
        if (self.frequency != 0 or self.presence != 0) and len(output):
            ids, counts = np.unique(output, return_counts=True)
            adjusted[ids] -= self.frequency * counts.astype(np.float32)
            adjusted[ids] -= self.presence


def completing(phrases: tuple[tuple[int, ...], ...], output: Ints) -> Ids:
    """Find the last ids of those phrases whose other ids were just generated."""
    longest = max(len(phrase) for phrase in phrases) - 1
    tail = tuple(output[-longest:].tolist())
    return _ids([phrase[-1] for phrase in phrases if tail[len(tail) - len(phrase) + 1 :] == phrase[:-1]])


def _ids(values: list[int] | tuple[int, ...]) -> Ids:
    return np.array(values, dtype=np.intp)

"""What users get back: chunks of a stream, completions, results. Plain values."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from headrace.core.columns import ints
from headrace.core.messages import Delta, FinishReason, PositionLogprobs, Usage


class Logprob(NamedTuple):
    """One candidate at one position."""

    logprob: float
    """Natural logarithm, before any adjustment by sampling parameters."""
    rank: int
    """1 is the likeliest."""
    decoded_token: str


LogprobsList = list[dict[int, Logprob]]
"""Per token: candidates by id, the sampled one first, then the likeliest."""


class Chunk(Struct, frozen=True, kw_only=True):
    """More of one completion, as a stream yields it. Chunks of a slow reader are merged: nothing is lost."""

    index: int = 0
    """Which of the n completions."""
    text: str = ""
    token_ids: list[int] = []
    logprobs: LogprobsList | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """With the first chunk, where asked for."""
    finish_reason: FinishReason | None = None
    """None until the completion's last chunk."""
    stop_reason: int | str | None = None
    usage: Usage | None = None
    """With the last chunk."""


class Timings(Struct, frozen=True):
    """Seconds, as the frontend saw them."""

    queued_s: float | None
    """From submission until first scheduled."""
    ttft_s: float | None
    """From submission to the first token."""
    total_s: float


class Completion(Struct, frozen=True, kw_only=True):
    """One finished completion of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: LogprobsList | None = None


class Result(Struct, frozen=True, kw_only=True):
    """A finished request. Its text, token_ids, finish_reason, stop_reason and logprobs are those of completion 0."""

    completions: list[Completion]
    usage: Usage
    """Prompt counted once, completion tokens summed over all n."""
    timings: Timings
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None

    @property
    def text(self) -> str:
        """The generated text."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """The generated ids, with the one that ended the request."""
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """stop, length or abort."""
        return self.completions[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string or id that ended it; None for the model's own end and for other reasons."""
        return self.completions[0].stop_reason

    @property
    def logprobs(self) -> LogprobsList | None:
        """One dict per generated id, where asked for."""
        return self.completions[0].logprobs


def chunk_of(delta: Delta) -> Chunk:
    """Turn a message into what users see."""
    prompt_logprobs = None
    if delta.prompt_logprobs is not None:
        prompt_logprobs = [None if position is None else _by_id(position) for position in delta.prompt_logprobs]
    return Chunk(
        index=delta.request.choice,
        text=delta.text,
        token_ids=ints(delta.token_ids).tolist(),
        logprobs=None if delta.logprobs is None else [_by_id(position) for position in delta.logprobs],
        prompt_logprobs=prompt_logprobs,
    )


def join(chunks: Sequence[Chunk]) -> Chunk:
    """Join successive chunks of one completion, at least one, in time that grows with their lengths only."""
    if len(chunks) == 1:
        return chunks[0]
    last = chunks[-1]
    logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    return Chunk(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
        logprobs=[entry for entries in logprobs for entry in entries] if logprobs else None,
        prompt_logprobs=next((chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        usage=last.usage,
    )


def _by_id(position: PositionLogprobs) -> dict[int, Logprob]:
    candidates: dict[int, Logprob] = {}
    for candidate in position:
        candidates.setdefault(candidate.token_id, Logprob(candidate.logprob, candidate.rank, candidate.text))
    return candidates

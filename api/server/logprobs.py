"""Log probabilities in the two shapes of OpenAI's API."""

import math
from collections.abc import Iterable

from headrace.outputs import Logprob
from headrace.server.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)

LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks."""

Position = dict[int, Logprob]
"""Candidates by id, the reported token first."""


def completion_logprobs(
    positions: Iterable[Position | None], num_alternatives: int, offset: int, first_token: str = ""
) -> CompletionLogprobs:
    """Make the columns of some tokens whose text starts at `offset`.

    None stands for the first token of an echoed prompt, whose text is `first_token`.
    """
    offsets: list[int] = []
    values: list[float | None] = []
    tokens: list[str] = []
    tops: list[dict[str, float] | None] = []
    for position in positions:
        reported = None if position is None else next(iter(position.values()))
        tokens.append(first_token if reported is None else reported.decoded_token)
        values.append(None if reported is None else _finite(reported.logprob))
        tops.append(None if position is None else _by_text(position, num_alternatives))
        offsets.append(offset)
        offset += len(tokens[-1])
    return CompletionLogprobs(offsets, values, tokens, tops if num_alternatives else None)


def text_length(logprobs: CompletionLogprobs) -> int:
    """Count the characters of all tokens, one by one."""
    return sum(map(len, logprobs.tokens))


def _by_text(position: Position, num_alternatives: int) -> dict[str, float]:
    """Return the reported token and the likeliest; of tokens with the same text the likelier counts."""
    reported = next(iter(position.values()))
    best: dict[str, float] = {}
    for candidate in sorted(position.values(), key=lambda candidate: candidate.rank):
        if candidate.rank <= num_alternatives or candidate is reported:
            best.setdefault(candidate.decoded_token, _finite(candidate.logprob))
    return best


def chat_logprobs(positions: Iterable[Position], num_alternatives: int) -> ChatLogprobs:
    """Make one entry per token of an answer."""
    return ChatLogprobs([_chat_entry(position, num_alternatives) for position in positions])


def _chat_entry(position: Position, num_alternatives: int) -> ChatLogprob:
    reported = next(iter(position.values()))
    likeliest = sorted(position.values(), key=lambda candidate: candidate.rank)[:num_alternatives]
    tops = [
        TopLogprob(candidate.decoded_token, _finite(candidate.logprob), _bytes(candidate.decoded_token))
        for candidate in likeliest
        if candidate.rank <= num_alternatives
    ]
    token = reported.decoded_token
    return ChatLogprob(token, _finite(reported.logprob), _bytes(token), tops)


def prompt_logprobs(positions: list[Position | None]) -> PromptLogprobs:
    """Put a prompt's into vLLM's shape."""
    return [
        None
        if position is None
        else {
            token_id: PromptLogprob(_finite(each.logprob), each.rank, each.decoded_token)
            for token_id, each in position.items()
        }
        for position in positions
    ]


def _bytes(token: str) -> list[int] | None:
    return None if "\ufffd" in token else list(token.encode())


def _finite(value: float) -> float:
    return value if math.isfinite(value) else LOWEST

"""Drives an OutputActor as core and frontends would, and collects what it sends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.core.columns import ints, pack_ints
from headrace.core.messages import (
    Bound,
    Delta,
    Ended,
    Finished,
    RequestId,
    StepOutput,
    StopHit,
    TextPart,
    ToFrontend,
    ToOutput,
)
from headrace.core.output import OutputActor

U_FFFD = "\ufffd"
FIRST = RequestId(0, 1, 0)


def text_part(**changed: Any) -> bytes:
    """Encode a TextPart; by default nothing is asked for."""
    part = TextPart((), (), include_stop=False, skip_special_tokens=True, min_tokens=0)
    return msgspec.msgpack.encode(msgspec.structs.replace(part, **changed))


def bound(request: RequestId = FIRST, row: int = 0, text: bytes | None = None, num_prompt: int = 5) -> Bound:
    return Bound(row, request, num_prompt, 2, 1.5, text_part() if text is None else text)


def tokens(*rows: tuple[int, Sequence[int]], **more: Any) -> StepOutput:
    """Make a step's output: (row, token ids) each."""
    flat = [token_id for _, token_ids in rows for token_id in token_ids]
    return StepOutput(
        rows=pack_ints([row for row, _ in rows]),
        num_new=pack_ints([len(token_ids) for _, token_ids in rows]),
        token_ids=pack_ints(flat),
        **more,
    )


@dataclass
class Harness:
    """An actor and all it sent."""

    tokenizer: Any
    sent: list[tuple[int, list[ToFrontend]]] = field(default_factory=list)
    hits: list[StopHit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.actor = OutputActor(
            self.tokenizer, lambda frontend, messages: self.sent.append((frontend, messages)), self.hits.append
        )

    def handle(self, *messages: ToOutput) -> list[ToFrontend]:
        """Let the actor handle these at once; returns what it sent for them."""
        self.sent.clear()
        self.actor.handle(messages)
        return [message for _, messages in self.sent for message in messages]

    def is_idle(self) -> bool:
        """Tell whether nothing of any request is left."""
        actor = self.actor
        return not (actor._requests or actor._rows or actor._outbox)


@dataclass
class Outcome:
    """All that one request gave."""

    deltas: list[str]
    finished: Finished
    token_ids: list[int]
    hits: list[StopHit]

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def run(tokenizer: Any, script: Sequence[int], size: int = 1, end: Ended | None = None, **part: Any) -> Outcome:
    """Play a core that emits these ids, `size` per step, and reports the end with the last ones."""
    harness = Harness(tokenizer)
    harness.handle(StepOutput(bound=(bound(text=text_part(**part)),)))
    last = end or Ended(FIRST, "length")
    sent: list[ToFrontend] = []
    for start in range(0, len(script), size):
        is_last = start + size >= len(script)
        sent += harness.handle(tokens((0, script[start : start + size]), ended=(last,) if is_last else ()))
    assert harness.is_idle()
    return outcome(sent, harness.hits)


def outcome(sent: list[ToFrontend], hits: list[StopHit]) -> Outcome:
    finished = [message for message in sent if isinstance(message, Finished)]
    assert len(finished) == 1
    assert sent[-1] is finished[0]
    deltas = [message for message in sent if isinstance(message, Delta)] + [finished[0].last]
    token_ids = [int(token_id) for delta in deltas for token_id in ints(delta.token_ids)]
    assert finished[0].usage.completion_tokens == len(token_ids)
    return Outcome([delta.text for delta in deltas], finished[0], token_ids, hits)

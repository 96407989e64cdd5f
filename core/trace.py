"""What each process did when, for a look at how steps overlap. A ring in memory, always on: some microseconds a step.

A GetTrace call collects the spans of every process on its way round the ring.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

RING_SIZE = 20_000
"""Spans that a process remembers."""


class Span(Struct, frozen=True, array_like=True):
    """Something a process did, in seconds of time.monotonic()."""

    process: str
    name: str
    start: float
    end: float
    step: int = 0
    """Number of the step it belongs to; 0 for none."""
    num_rows: int = 0
    num_tokens: int = 0


class Tracer:
    """The ring of one process. Owner: its actor."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._ring: deque[tuple[str, str, float, float, int, int, int]] = deque(maxlen=RING_SIZE)

    def add(
        self, name: str, start: float, end: float, step: int = 0, num_rows: int = 0, num_tokens: int = 0,
        process: str | None = None,
    ) -> None:  # fmt: skip
        """Note something done, by this process unless another one is named."""
        self._ring.append((process or self._process, name, start, end, step, num_rows, num_tokens))

    def spans(self) -> tuple[Span, ...]:
        """Return what the ring holds, oldest first."""
        return tuple(Span(*entry) for entry in tuple(self._ring))  # a copy first: other threads may add to the ring


def chrome_trace(spans: Iterable[Span]) -> dict[str, Any]:
    """Return spans in the Trace Event Format, which Perfetto and chrome://tracing open.

    One track per process, and more where spans of it overlap: those of one track must not.
    """
    spans = sorted(spans, key=lambda span: span.start)
    names = {name: number for number, name in enumerate(dict.fromkeys(span.process for span in spans), start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}} for name, number in names.items()
    ]
    track_ends: dict[str, list[float]] = {name: [] for name in names}
    for span in spans:
        args = {"step": span.step, "num_rows": span.num_rows, "num_tokens": span.num_tokens}
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "pid": names[span.process],
                "tid": _take_track(track_ends[span.process], span),
                "ts": span.start * 1e6,
                "dur": (span.end - span.start) * 1e6,
                "args": {key: value for key, value in args.items() if value},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _take_track(ends: list[float], span: Span) -> int:
    """Return the number of the first track that is free when the span starts; `ends` are those of a process."""
    track = next((track for track, end in enumerate(ends) if end <= span.start), len(ends))
    ends[track : track + 1] = [span.end]
    return track + 1

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
    """Return spans in the Trace Event Format, which Perfetto and chrome://tracing open: one track per process."""
    spans = list(spans)
    names = {name: number for number, name in enumerate(dict.fromkeys(span.process for span in spans), start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}} for name, number in names.items()
    ]
    for span in spans:
        args = {"step": span.step, "num_rows": span.num_rows, "num_tokens": span.num_tokens}
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "pid": names[span.process],
                "tid": 1,
                "ts": span.start * 1e6,
                "dur": (span.end - span.start) * 1e6,
                "args": {key: value for key, value in args.items() if value},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}

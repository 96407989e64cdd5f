"""Figures of a load: percentiles, throughput, goodput. No clock, no network."""

from collections.abc import Sequence

from msgspec import Struct

from headrace.bench.client import Record
from headrace.core.errors import InvalidParameter

GOALS = ("ttft", "itl", "e2e")


class Goal(Struct, frozen=True):
    """A latency that a request must keep to be good."""

    name: str
    """ttft, itl (a request's mean time between tokens) or e2e."""
    limit_ms: float


class Distribution(Struct, frozen=True):
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Summary(Struct, frozen=True, kw_only=True):
    """Figures of all requests that ended well."""

    completed: int
    failed: int
    duration_s: float
    """From the first request to the last end."""
    prompt_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float | None
    """Requests a second that kept every goal; None without goals."""
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    """Between events with text, of all requests."""
    e2e_ms: Distribution | None


def read_goals(text: str | None) -> tuple[Goal, ...]:
    """Read goals such as "ttft:200,itl:50", in milliseconds. Raises InvalidParameter."""
    goals = []
    for part in text.split(",") if text else ():
        name, _, limit = part.strip().partition(":")
        try:
            goals.append(Goal(name, float(limit)))
        except ValueError:
            name = ""
        if name not in GOALS:
            raise InvalidParameter(
                f"--goodput has {part!r}, must be NAME:MILLISECONDS of {', '.join(GOALS)}", "goodput"
            )
    return tuple(goals)


def summarize(records: Sequence[Record], goals: Sequence[Goal]) -> Summary:
    """Add up the records of one load."""
    good = [record for record in records if record.error is None]
    duration_s = max((record.ended for record in records), default=0.0)
    duration_s -= min((record.started for record in records), default=0.0)
    per_second = 1 / duration_s if duration_s else 0.0
    prompt_tokens = sum(record.prompt_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    return Summary(
        completed=len(good),
        failed=len(records) - len(good),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        requests_per_s=len(good) * per_second,
        output_tokens_per_s=output_tokens * per_second,
        total_tokens_per_s=(prompt_tokens + output_tokens) * per_second,
        goodput_per_s=sum(_keeps(record, goals) for record in good) * per_second if goals else None,
        ttft_ms=distribution([record.ttft_s for record in good]),
        itl_ms=distribution([gap for record in good for gap in record.gaps_s()]),
        e2e_ms=distribution([record.e2e_s for record in good]),
    )


def _keeps(record: Record, goals: Sequence[Goal]) -> bool:
    seconds = {"ttft": record.ttft_s, "itl": record.mean_itl_s, "e2e": record.e2e_s}
    return all(1000 * seconds[goal.name] <= goal.limit_ms for goal in goals)


def distribution(seconds: Sequence[float]) -> Distribution | None:
    """Describe some times; None of none."""
    if not seconds:
        return None
    import numpy as np

    values = 1000 * np.asarray(seconds)
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, (50, 90, 95, 99)))
    return Distribution(float(values.mean()), p50, p90, p95, p99, float(values.max()))

"""Percentiles, throughput and goodput, of made-up times."""

import pytest

from headrace.bench.client import Record
from headrace.bench.report import Goal, distribution, read_goals, summarize
from headrace.core.errors import InvalidParameter


def record(started, token_times, output_tokens=None, error=None):
    ended = token_times[-1] if token_times else started
    return Record(
        started=started,
        ended=ended,
        token_times=token_times,
        prompt_tokens=10,
        output_tokens=output_tokens or len(token_times),
        error=error,
    )


FAST = record(0.0, [0.1, 0.2, 0.3])
SLOW = record(1.0, [1.5, 1.9, 2.0])
FAILED = record(0.5, [], error="status 500")


def test_throughput_counts_what_ended_well_over_the_whole_time():
    summary = summarize([FAST, SLOW, FAILED], ())
    assert (summary.completed, summary.failed, summary.duration_s) == (2, 1, 2.0)
    assert (summary.requests_per_s, summary.output_tokens_per_s, summary.total_tokens_per_s) == (1.0, 3.0, 13.0)
    assert summary.goodput_per_s is None


def test_latencies_are_of_each_request_and_each_gap():
    summary = summarize([FAST, SLOW, FAILED], ())
    assert summary.ttft_ms.mean == pytest.approx(300)
    assert summary.ttft_ms.max == pytest.approx(500)
    assert summary.itl_ms.mean == pytest.approx((100 + 100 + 400 + 100) / 4)
    assert summary.e2e_ms.max == pytest.approx(1000)


@pytest.mark.parametrize(
    ("goals", "good"),
    [("ttft:100.1", 1), ("ttft:99", 0), ("itl:250.1", 2), ("itl:249,ttft:500", 1), ("e2e:300.1,ttft:500", 1)],
)
def test_goodput_counts_requests_that_keep_every_goal(goals, good):
    assert summarize([FAST, SLOW, FAILED], read_goals(goals)).goodput_per_s == pytest.approx(good / 2)


def test_events_of_several_tokens_share_their_gap():
    several = record(0.0, [0.1, 0.5], output_tokens=5)
    assert summarize([several], [Goal("itl", 100.1)]).goodput_per_s > 0


def test_a_load_without_a_good_request_has_no_latencies():
    summary = summarize([FAILED], [Goal("ttft", 1)])
    assert (summary.completed, summary.ttft_ms, summary.itl_ms, summary.goodput_per_s) == (0, None, None, 0)


def test_percentiles_are_those_of_the_values():
    values = distribution([number / 1000 for number in range(101)])
    assert (values.p50, values.p90, values.p99, values.max) == pytest.approx((50, 90, 99, 100))


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:fast", "tpot:5", "ttft:5;itl:6"])
def test_a_goal_that_is_none_is_refused(text):
    with pytest.raises(InvalidParameter, match="--goodput"):
        read_goals(text)

"""When requests are sent."""

import pytest

from headrace.bench.load import arrivals


def test_requests_come_at_the_rate_on_average_and_the_first_at_once():
    due = list(arrivals(5000, 20.0, seed=1))
    assert due[0] == 0
    assert due == sorted(due)
    assert 5000 / due[-1] == pytest.approx(20, rel=0.05)


def test_a_seed_decides_the_times():
    assert list(arrivals(9, 2.0, seed=1)) == list(arrivals(9, 2.0, seed=1)) != list(arrivals(9, 2.0, seed=2))

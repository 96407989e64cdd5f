"""Timers, real and virtual."""

import threading
import time

import pytest

from headrace.runners.timers import TimerThread, VirtualClock

HANG_GUARD_S = 60


def test_a_virtual_clock_calls_in_order_of_deadlines_each_at_its_own_time() -> None:
    clock, seen = VirtualClock(), []
    for name, deadline in (("b", 2.0), ("a", 1.0), ("c", 2.0), ("late", 9.0)):
        clock.call_at(deadline, lambda name=name: seen.append((name, clock())))
    assert clock.next_deadline() == 1.0
    clock.advance(5.0)
    assert seen == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert (clock(), clock.next_deadline()) == (5.0, 9.0)


def test_a_call_may_make_another_that_falls_due() -> None:
    clock, seen = VirtualClock(), []
    clock.call_at(1.0, lambda: clock.call_at(clock() + 1, lambda: seen.append(clock())))
    clock.advance(2.0)
    assert seen == [2.0]


def test_virtual_time_does_not_go_back() -> None:
    clock = VirtualClock(3.0)
    with pytest.raises(ValueError, match=r"3\.0 s"):
        clock.advance(2.0)


def test_a_timer_thread_calls_not_before_the_deadline() -> None:
    timer, called, times = TimerThread(), threading.Event(), []

    def call() -> None:
        times.append(time.monotonic())
        called.set()

    deadline = time.monotonic() + 0.01
    timer.call_at(deadline, call)
    assert called.wait(HANG_GUARD_S)
    timer.close()
    assert times[0] >= deadline


def test_closing_wakes_a_timer_that_waits_and_nothing_is_called() -> None:
    timer, seen = TimerThread(), []
    timer.call_at(time.monotonic() + HANG_GUARD_S, lambda: seen.append(1))
    timer.close()
    timer.close()
    assert seen == []


def test_a_timer_that_was_never_used_closes() -> None:
    TimerThread().close()

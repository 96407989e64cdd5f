"""Ages of work and steps, on a manual clock."""

from headrace.core.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make():
    clock = Clock()
    return clock, Progress(clock)


def test_an_idle_core_has_no_ages():
    clock, progress = make()
    clock.now += 50
    assert (progress.pong().ready_age_s, progress.pong().step_age_s) == (0, 0)


def test_work_that_came_after_a_rest_waits_from_then_on():
    clock, progress = make()
    clock.now += 50
    progress.work_came()
    clock.now += 3
    progress.work_came()
    clock.now += 4
    assert progress.pong().ready_age_s == 7


def test_each_step_that_comes_or_goes_is_progress():
    clock, progress = make()
    progress.work_came()
    for note in (progress.step_submitted, progress.step_submitted, progress.step_returned):
        clock.now += 5
        note()
    clock.now += 2
    assert (progress.pong().ready_age_s, progress.pong().step_age_s) == (2, 7)


def test_waiting_work_of_a_paused_core_has_no_age_but_its_steps_have():
    clock, progress = make()
    progress.work_came()
    progress.step_submitted()
    progress.is_paused = True
    clock.now += 2
    assert (progress.pong().ready_age_s, progress.pong().step_age_s) == (0, 2)


def test_a_core_at_rest_forgets_the_age_of_its_work():
    clock, progress = make()
    progress.work_came()
    progress.rest()
    clock.now += 9
    assert progress.pong().ready_age_s == 0


def test_after_a_pause_the_wait_of_work_counts_from_its_end():
    clock, progress = make()
    progress.work_came()
    progress.is_paused = True
    clock.now += 3600
    progress.go_on()
    clock.now += 1
    assert progress.pong().ready_age_s == 1

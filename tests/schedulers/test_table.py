"""The table scheduler makes the schedules of the plain one, step by step, on any workload."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from twins import CHOICES, EVENTS, Twins, play

CHANCES = st.integers(0, 1 << 30).map(random.Random)


class TwinMachine(RuleBasedStateMachine):
    """Requests of all kinds come and go, and steps come back with tokens, without, failed and void."""

    @initialize(choices=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}))
    def start(self, choices):
        self.twins = Twins(**choices)

    @rule(chance=CHANCES, count=st.integers(1, 8), most_tokens=st.sampled_from([60, 3]))
    def add(self, chance, count, most_tokens):
        for _ in range(count):
            self.twins.add(chance, most_tokens)

    @rule(chance=CHANCES, num_turns=st.integers(1, 20), surprise=st.sampled_from([0.0, 0.02, 0.1]))
    def go_on(self, chance, num_turns, surprise):
        self.twins.go_on(chance, num_turns, surprise)

    @rule(times=st.integers(1, 3))
    def schedule(self, times):
        self.twins.schedule(times)

    @rule(chance=CHANCES)
    def complete(self, chance):
        if self.twins.in_flight:
            self.twins.complete(self.twins.made_up(chance, 0.0))

    @rule(chance=CHANCES, event=st.sampled_from(EVENTS))
    def interrupt(self, chance, event):
        self.twins.interrupt(chance, event)

    def teardown(self):
        if hasattr(self, "twins"):
            self.twins.finish()


TwinMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwins = TwinMachine.TestCase


@pytest.mark.parametrize("seed", range(10))
def test_schedules_are_equal_on_a_busy_workload(seed):
    play(seed, num_events=10)


@pytest.mark.verify
def test_schedules_are_equal_on_a_thousand_workloads():
    for seed in range(1000):
        play(seed, num_events=30)


@pytest.mark.verify
def test_schedules_are_equal_on_many_more_event_sequences():
    many = settings(max_examples=1000, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(TwinMachine, settings=many)

"""Every rule of contracts that concerns scheduler and KV manager together, on random workloads with `kvhash`.

After each event all invariants hold; at the end each request has exactly the tokens it would have had alone.
"""

import pytest
from harness import GREEDY, Harness
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from headrace.core.columns import ints
from headrace.core.errors import BusyError, ErrorInfo, PromptTooLong
from headrace.core.messages import StepDone
from headrace.runners.kvhash import reference
from headrace.schedulers.policies.fcfs import FCFS
from headrace.schedulers.policies.priority import Priority


class CoreMachine(RuleBasedStateMachine):
    """Requests come, are aborted and fail while steps are scheduled, computed and void."""

    @initialize(
        scheduler=st.sampled_from(["plain", "table"]),
        policy=st.sampled_from([FCFS, Priority]),
        kv=st.sampled_from(["paged", "paged", "simple"]),
        caching=st.booleans(),
        is_async=st.booleans(),
        windows=st.sampled_from([(0,), (0,), (0, 0), (9,), (1,), (6, 0), (13, 4, 0)]),
        num_blocks=st.integers(6, 24),
        budget=st.integers(3, 64),
        chunk=st.sampled_from([None, 5, 16]),
        num_seqs=st.integers(1, 6),
        drafts=st.sampled_from([0, 0, 1, 3]),
    )
    def start(self, scheduler, policy, kv, caching, is_async, windows, num_blocks, budget, chunk, num_seqs, drafts):
        self.h = Harness(
            policy(),
            kv,
            windows=windows,
            scheduler=scheduler,
            block_size=4,
            num_kv_blocks=num_blocks,
            enable_prefix_caching=caching,
            async_scheduling=is_async,
            max_num_batched_tokens=budget,
            max_prefill_chunk=chunk,
            max_num_seqs=num_seqs,
            num_speculative_tokens=drafts,
        )
        self.windows = windows
        self.expected = {}
        self.computes = {}
        self.may_fail = set()

    @rule(
        family=st.integers(0, 2),
        shared=st.integers(0, 30),
        own=st.lists(st.integers(0, 511), min_size=1, max_size=12),
        max_tokens=st.integers(1, 24),
        priority=st.integers(0, 3),
        salt=st.sampled_from([None, None, "a"]),
        read_cache=st.sampled_from([True, True, True, False]),
    )
    def add(self, family, shared, own, max_tokens, priority, salt, read_cache):
        prompt = [family * 100 + i for i in range(shared)] + own
        sampling = GREEDY if read_cache else replace(GREEDY, prompt_logprobs=0)
        needed = len(prompt) + max_tokens - 1
        try:
            request = self.h.add(prompt, max_tokens, sampling, salt, priority=priority)
        except PromptTooLong:
            assert needed > self.h.kv.max_tokens()
            return
        assert needed <= self.h.kv.max_tokens()
        self.expected[request] = reference(prompt, max_tokens, num_groups=len(self.windows), windows=self.windows)

    @precondition(lambda self: self.expected)
    @rule(pick=st.randoms(use_true_random=False), count=st.integers(1, 3))
    def abort(self, pick, count):
        self.h.abort(*(pick.choice(list(self.expected)) for _ in range(count)))

    @rule()
    def schedule(self):
        if len(self.h.in_flight) >= self.h.depth:
            return
        stats = self.h.scheduler.stats()
        step = self.h.schedule()
        if step:
            owners = {request.row: request.id for request in self.h.scheduler.running_requests()}
            self.computes[step.step] = {owners[row] for row in ints(step.rows).tolist()}
        is_free = stats.kv.num_free == stats.kv.num_blocks and not self.h.in_flight
        if stats.num_waiting and is_free:
            assert step is not None, "rule 18: nothing runs, the pool is free and a request waits"

    @precondition(lambda self: self.h.in_flight)
    @rule()
    def complete(self):
        self.h.complete()

    @precondition(lambda self: self.h.in_flight)
    @rule()
    def fail_step(self):
        step = self.h.in_flight[0]
        self.may_fail |= self.computes[step.step]
        self.h.complete(StepDone(step.step, error=ErrorInfo("RequestFailed", "the device failed")))
        while self.h.in_flight:  # the runner voids what was in flight behind it
            void = self.h.in_flight[0]
            self.h.complete(StepDone(void.step, error=ErrorInfo("RequestFailed", "void")))

    @precondition(lambda self: not self.h.in_flight)
    @rule(force=st.booleans())
    def reset_prefix_cache(self, force):
        is_busy = self.h.scheduler.num_running() > 0
        try:
            self.h.reset_prefix_cache(force)
        except BusyError:
            assert is_busy and not force
        else:
            assert force or not is_busy

    @invariant()
    def holds(self):
        if not hasattr(self, "h"):
            return
        self.h.check()
        for request, tokens in self.h.tokens.items():
            assert tokens == self.expected[request][: len(tokens)], "tokens in order, once each, as if alone"
            if self.h.reason(request) == "length":
                assert len(tokens) == len(self.expected[request])
            elif self.h.reason(request) == "error":
                assert request in self.may_fail

    def teardown(self):
        if not hasattr(self, "h"):
            return
        try:
            self.h.run()
            self.holds()
            self.h.check_idle()
        finally:
            self.h.close()


CoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestContracts = CoreMachine.TestCase


@pytest.mark.verify
def test_contracts_hold_on_many_more_workloads():
    from hypothesis.stateful import run_state_machine_as_test

    many = settings(max_examples=3000, stateful_step_count=120, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(CoreMachine, settings=many)

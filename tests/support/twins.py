"""A plain and a table scheduler side by side, on made-up workloads with every kind of surprise a runner can have."""

import random
from collections.abc import Callable
from typing import Any

from harness import GREEDY, Harness
from msgspec.structs import replace

from headrace.core.columns import ints, pack_ints
from headrace.core.errors import BusyError, ErrorInfo, PromptTooLong
from headrace.core.messages import RequestId, RowFailure, RunStep, StepDone
from headrace.schedulers.columns import MAX_STOPS
from headrace.schedulers.policies.base import HeapPolicy
from headrace.schedulers.policies.fcfs import FCFS
from headrace.schedulers.policies.priority import Priority

ERROR = ErrorInfo("RequestFailed", "the device failed")
VOCAB = 100
EVENTS = ("abort", "abort two", "stop", "fail step", "fail first", "reset", "pause")


def schedule(harness: Harness) -> RunStep | None:
    """Make a step; its table changes are in the order of groups and rows, which managers may report in another."""
    step = harness.schedule()
    return step and replace(step, tables=pack_ints(sorted(ints(step.tables).reshape(-1, 4).tolist())))


class FewestFirst(HeapPolicy):
    """Looks at what was generated, and preempts by it."""

    def key(self, request):
        return request.num_generated

    def victim(self, running, for_request):
        return max(range(len(running)), key=lambda i: (running[i].num_generated, running[i].order))


CHOICES: dict[str, list[Any]] = {
    "policy": [FCFS, Priority, FewestFirst],
    "kv": ["paged", "paged", "simple"],
    "windows": [(), (), (9,), (6, 0)],
    "enable_prefix_caching": [True, True, False],
    "async_scheduling": [True, False],
    "depth": [2, 1, 3],
    "num_kv_blocks": [48, 48, 6, 12, 24, 96],
    "max_num_batched_tokens": [64, 64, 40, 16, 5, 2],
    "max_prefill_chunk": [None, None, 1, 5, 16],
    "enable_chunked_prefill": [True, True, True, False],
    "max_num_seqs": [8, 8, 5, 3, 1],
    "num_speculative_tokens": [0, 0, 2, 5],
    "step_ms": [None, None, 1, 20],
}
"""What a workload may be, the usual first."""


class Twins:
    """Both schedulers. Whatever happens to them, they do the same: the same steps, outputs and counts."""

    def __init__(self, policy: type[HeapPolicy], kv: str, depth: int, **config: Any) -> None:
        if not config["enable_chunked_prefill"]:
            config |= {"max_num_batched_tokens": 64, "max_model_len": 64, "max_prefill_chunk": None, "step_ms": None}
        both = (Harness(policy(), kv, scheduler=name, block_size=4, **config) for name in ("plain", "table"))
        self.plain, self.table = both
        self.depth = depth
        self.added: list[RequestId] = []

    @property
    def in_flight(self):
        return self.plain.in_flight

    def both(self, do: Callable[[Harness], Any]) -> Any:
        """Let both do this; the same comes of it, which is returned."""
        results = []
        for harness in (self.plain, self.table):
            try:
                results.append(do(harness))
            except (BusyError, PromptTooLong) as error:
                results.append(type(error))
        assert results[0] == results[1]
        return results[0]

    def check(self) -> None:
        """Check that nothing differs that can be seen."""
        assert self.plain.published == self.table.published
        for harness in (self.plain, self.table):
            harness.published.clear()
            harness.check()
        self.both(lambda h: h.scheduler.stats())
        self.both(lambda h: [(r.id, r.row, r.facts.num_generated) for r in h.scheduler.requests.values()])
        self.both(lambda h: [r.id for r in h.scheduler.running_requests()])

    # --- events ---

    def add(self, chance: random.Random, most_tokens: int) -> None:
        """Add a request; many share a start."""
        family, shared = 100 * chance.randrange(2), chance.choice([0, 5, 12, 12, 30])
        prompt = [family + i for i in range(shared)] + chance.choices(range(VOCAB), k=chance.randint(1, 8))
        stop_ids = chance.choice([(), (), (1,), (1, 2), tuple(range(MAX_STOPS + 2))])
        room = self.plain.facts.max_model_len - len(prompt)  # what the input process sees to
        request = {
            "max_tokens": min(chance.randint(1, most_tokens), room),
            "sampling": replace(GREEDY, prompt_logprobs=chance.choice([None, None, None, 0])),
            "priority": chance.randrange(4),
            "stop_ids": stop_ids,
            "eos_ids": stop_ids[:1],
            "min_tokens": chance.choice([0, 0, 3]),
            "text": b"text",
        }
        added = self.both(lambda h: h.add(prompt, **request))
        if added is not PromptTooLong:
            self.added.append(added)

    def go_on(self, chance: random.Random, num_turns: int, surprise: float = 0.0, arrivals: float = 0.0) -> None:
        """Do what the engine's loop does, so often."""
        for _ in range(num_turns):
            if chance.random() < arrivals:
                self.add(chance, 20)
            while len(self.in_flight) < self.depth and self.both(schedule):
                pass
            if self.in_flight:
                self.complete(self.made_up(chance, surprise))

    def schedule(self, times: int = 1) -> None:
        """Schedule up to so many steps, in no loop's order."""
        for _ in range(min(times, self.depth - len(self.in_flight))):
            self.both(schedule)

    def complete(self, done: StepDone) -> None:
        """Take in a result."""
        self.both(lambda h: h.complete(done))
        self.check()

    def interrupt(self, chance: random.Random, event: str) -> None:
        """Let something happen that seldom does."""
        if not self.added:
            return
        first, second = chance.choice(self.added), chance.choice(self.added)
        is_sure = chance.random() < 0.5
        match event:
            case "abort":
                self.both(lambda h: h.abort(first))
            case "abort two":
                self.both(lambda h: h.abort(first, second, first))
            case "stop":
                self.both(lambda h: h.scheduler.stop(first, 2))
            case "pause":
                self.both(lambda h: h.pause(admissions=is_sure, steps=not is_sure))
                self.go_on(chance, 3)
                self.both(lambda h: h.pause(admissions=False, steps=False))
            case "reset" if not self.in_flight:
                self.both(lambda h: h.reset_prefix_cache(is_sure))
            case "fail step":
                self.schedule(self.depth)
                while self.in_flight:  # the runner voids what is in flight behind the step that failed
                    self.complete(StepDone(self.in_flight[0].step, error=ERROR))
            case "fail first":
                self.schedule(self.depth)
                if self.in_flight:
                    self.complete(self.made_up(chance, 0.0, num_failed=1))
        self.check()

    def made_up(self, chance: random.Random, surprise: float, num_failed: int = 0) -> StepDone:
        """Make a result up: every row that samples gives a token, or something else happens to it.

        The first num_failed rows fail: those that were admitted first, whose blocks others may share.
        """
        step = self.in_flight[0]
        [entries] = [s.entries for s in self.plain.scheduler.in_flight if s.number == step.step]
        num_new, num_drafted, failed = [], [], []
        for row, entry in entries.items():
            is_surprising = chance.random() < surprise
            num_drafted.append(chance.randint(0, entry.num_drafts))
            num_new.append(entry.samples + chance.randint(0, num_drafted[-1]))
            if len(failed) < num_failed or (is_surprising and chance.random() < 0.5):
                num_new[-1] = 0
                failed.append(RowFailure(row, ERROR))
            elif is_surprising and entry.samples:
                more = [] if self.plain.config.num_speculative_tokens else [2, 3]
                num_new[-1] = chance.choice([0, *more])
        token_ids = [chance.randrange(VOCAB) for _ in range(sum(num_new))]
        drafted = pack_ints(num_drafted) if any(num_drafted) else b""
        done = StepDone(step.step, pack_ints(num_new), pack_ints(token_ids), drafted, tuple(failed))
        return replace(done, ended=chance.random() / 50)

    def finish(self) -> None:
        """Go on until every request has ended, and close both."""
        try:
            self._finish(random.Random(0))
        finally:
            self.plain.close()
            self.table.close()

    def _finish(self, chance: random.Random) -> None:
        for _ in range(1000):
            self.go_on(chance, 10)
            if not self.in_flight and not self.plain.scheduler.unfinished():
                break
        assert not self.both(lambda h: h.scheduler.unfinished())
        stats = self.both(lambda h: h.scheduler.stats())
        assert stats.kv.num_free == stats.kv.num_blocks


def play(seed: int, num_events: int) -> None:
    """Drive the twins through a random workload."""
    chance = random.Random(seed)
    twins = Twins(**{name: chance.choice(values) for name, values in CHOICES.items()})
    for _ in range(8):
        twins.add(chance, 60)
    for _ in range(num_events):
        twins.go_on(chance, chance.choice([1, 5, 20]), chance.choice([0.0, 0.0, 0.02, 0.1]), chance.choice([0.1, 0.4]))
        if chance.random() < 0.5:
            twins.interrupt(chance, chance.choice(EVENTS))
    twins.finish()

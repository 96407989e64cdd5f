"""KV managers against a runner's storage: whatever they hand out and take back, each row reads its own tokens.

The storage holds, per slot, what K/V are a function of: the salt and all tokens up to there. It knows blocks only from
take_changes, as a runner does, and steps run later than they are scheduled, in order, up to two in flight.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.columns import ints
from headrace.core.interfaces import BlockKeys, KVManager
from headrace.kv.layout import StepLimits, blocks_for
from headrace.kv.paged import PagedKV
from headrace.kv.prefix import BlockRemoved, BlockStored, KVEvent, hash_blocks, root_digest
from headrace.kv.simple import SimpleKV

MOST_COMPUTED = 5
"""Tokens of a row that a step computes."""
picks = st.integers(0, 59)
"""Chooses one of several, by the rest of a division."""


@dataclass(eq=False)
class Request:
    """A sequence that lives through several bindings."""

    tokens: list[int]
    salt: str | None
    keys: BlockKeys
    """Its prompt is hashed, as the input process does."""

    def content(self, position: int) -> object:
        """Return what K/V at this position are a function of."""
        return self.salt, tuple(self.tokens[: position + 1])


def new_request(tokens: list[int], block_size: int, salt: str | None = None) -> Request:
    """Make a request with this prompt."""
    root = root_digest(salt)
    return Request(tokens, salt, BlockKeys(root, hash_blocks(root, (), np.array(tokens, np.int32), block_size)))


@dataclass(eq=False)
class Binding:
    """A request's time in one row."""

    request: Request
    row: int
    scheduled: int
    """Tokens that are cached or in a step."""
    written: int
    """Tokens whose step has run."""
    is_bound: bool = True
    is_unsound: bool = False
    was_reset: bool = False
    """The cache was reset while it was bound: it registers nothing more."""
    fence: int = 0
    """The row may be used again when this step has run."""
    parents: set["Binding"] = field(default_factory=set)
    """Whose blocks it hit."""


@dataclass
class Step:
    """What a runner gets."""

    changes: bytes
    work: list[tuple[Binding, int, int]]
    """Binding, first position, end."""


class Storage:
    """The runner: tables mirrored from changes, one content per slot."""

    def __init__(self, windows: Sequence[int | None], max_rows: int, max_blocks: int, block_size: int) -> None:
        self.block_size, self.windows = block_size, windows
        self.tables = np.zeros((len(windows), max_rows, max_blocks), np.int32)
        self.slots: dict[tuple[int, int], tuple[Binding, object]] = {}
        """By group and slot, who wrote last, and what."""

    def places(self, group: int, row: int, first: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield position and place of these positions of a row in a group."""
        for position in range(first, end):
            block = int(self.tables[group, row, position // self.block_size])
            assert block > 0, "the null block is written or read"
            yield position, (group, block * self.block_size + position % self.block_size)

    def run(self, step: Step) -> None:
        """Write the K/V of all the step's tokens, then read all that those of each of its rows see."""
        for group, row, index, block in ints(step.changes).reshape(-1, 4).tolist():
            self.tables[group, row, index] = block
        for binding, first, end in step.work:
            for group in range(len(self.windows)):
                for position, place in self.places(group, binding.row, first, end):
                    self.slots[place] = binding, binding.request.content(position)
        for binding, first, end in step.work:
            for group, window in enumerate(self.windows):
                if not binding.is_unsound:
                    self.check(group, binding, 0 if window is None else max(0, first - window + 1), end)

    def check(self, group: int, binding: Binding, first: int, end: int) -> None:
        """Check that a row reads its own tokens, and nothing else, at these positions."""
        for position, place in self.places(group, binding.row, first, end):
            writer, content = self.slots[place]
            assert content == binding.request.content(position), f"{place} holds another sequence's K/V"
            assert not writer.is_unsound, f"{place} was written by a row that failed"


class KVMachine(RuleBasedStateMachine):
    """Requests come, grow, end, are preempted, fail; the cache is reset; two steps may be in flight."""

    windows: Sequence[int | None] = (None,)
    """Of each group."""
    caching = True
    block_size = 2
    max_rows = 6
    max_blocks = 6

    def make(self, num_blocks: int) -> KVManager:
        """Build the manager under test."""
        counts = [num_blocks + group for group in range(len(self.windows))]
        sizes = (self.block_size, self.max_rows, self.max_blocks)
        return PagedKV(counts, *sizes, self.caching, self.listen, self.windows, StepLimits(MOST_COMPUTED))

    @initialize(num_blocks=st.integers(3, 20))
    def start(self, num_blocks: int) -> None:
        """Start with a small pool, so that eviction and refusal are common."""
        self.index: dict[tuple[int, bytes], set[int]] = {}
        self.kv = self.make(num_blocks)
        self.storage = Storage(self.windows, self.max_rows, self.max_blocks, self.block_size)
        self.owners: dict[tuple[int, int], Binding] = {}
        """By group and block, the binding that registered it."""
        self.registrant: Binding | None = None
        """Whose blocks are being registered."""
        self.latest: dict[int, Binding] = {}
        """By row, its last binding."""
        self.waiting: list[Request] = []
        self.ended: list[Request] = []
        self.work: list[tuple[Binding, int, int]] = []
        self.in_flight: list[Step] = []
        self.num_steps = 0
        self.queries = self.hits = self.resume_hits = 0

    def listen(self, event: KVEvent) -> None:
        """Rebuild the index from events."""
        if isinstance(event, BlockStored):
            blocks = self.index.setdefault((event.group, event.digest), set())
            assert event.block not in blocks
            blocks.add(event.block)
            assert self.registrant is not None
            self.owners[event.group, event.block] = self.registrant
        elif isinstance(event, BlockRemoved):
            self.index[event.group, event.digest].remove(event.block)
        else:
            self.index.clear()

    # --- what is there ---

    @property
    def bound(self) -> list[Binding]:
        """Bindings that hold a row."""
        return [binding for binding in self.latest.values() if binding.is_bound]

    @property
    def idle(self) -> list[Binding]:
        """Bound ones that aren't in the step being scheduled, so that they may end."""
        busy = [binding for binding, _, _ in self.work]
        return [binding for binding in self.bound if binding not in busy]

    def free_row(self) -> int | None:
        """Return a row that nobody holds and that no step in flight was given up in."""
        num_run = self.num_steps - len(self.in_flight)
        for row in range(self.max_rows):
            latest = self.latest.get(row)
            if latest is None or (not latest.is_bound and latest.fence <= num_run):
                return row
        return None

    def expected_match(self, request: Request, num_tokens: int) -> int:
        """Count by the rebuilt index."""
        digests = request.keys.digests[: (num_tokens - 1) // self.block_size]
        counts = range(len(digests), 0, -1)
        return next((count * self.block_size for count in counts if self.is_hit(digests[:count])), 0)

    def is_hit(self, digests: Sequence[bytes]) -> bool:
        """Tell whether each group has what a query right behind these blocks sees, by the rebuilt index."""
        length = len(digests) * self.block_size
        firsts = [0 if window is None else max(0, length - window + 1) // self.block_size for window in self.windows]
        return all(self.index.get((group, digest)) for group, first in enumerate(firsts) for digest in digests[first:])

    # --- events ---

    @rule(same=st.integers(0, 9), then=st.lists(st.integers(0, 1), max_size=4), variant=st.integers(0, 9))
    def admit_new(self, same: int, then: list[int], variant: int) -> None:
        """Admit a request, or not: `same` tokens that others have too, others `then`; one variant in ten has a salt."""
        tokens = [0, 0, 1, 0, 1, 1, 0, 1, 1][:same] + then
        request = new_request(tokens or [1], self.block_size, "a" if variant == 1 else None)
        read_cache = variant != 2
        if not self.admit(request, read_cache, resumed=False):
            self.ended.append(request)

    @precondition(lambda self: self.waiting)
    @rule()
    def resume(self) -> None:
        """Admit a preempted request again."""
        if self.admit(self.waiting[0], read_cache=True, resumed=True):
            self.waiting.pop(0)

    def admit(self, request: Request, read_cache: bool, resumed: bool) -> bool:
        """Admit into a free row, check prediction and counts."""
        row = self.free_row()
        num_tokens = len(request.tokens)
        if row is None or num_tokens > self.kv.max_tokens():
            return False
        predicted = self.kv.match(request.keys, num_tokens) if read_cache else 0
        assert predicted <= num_tokens - 1
        before = self.kv.stats()
        cached = self.kv.admit(row, request.keys, num_tokens, read_cache, resumed)
        if cached is None:
            assert self.kv.stats() == before
            assert len(self.windows) > 1 or before.num_free < blocks_for(num_tokens, self.block_size)
            return False
        assert cached == predicted
        if self.caching and read_cache:
            self.resume_hits += cached * resumed
            self.hits += cached * (not resumed)
            self.queries += num_tokens * (not resumed)
        binding = self.latest[row] = Binding(request, row, cached, cached)
        blocks = set(self.blocks(binding, cached))
        binding.parents = {self.owners[block] for block in blocks}
        if not any(self.windows):
            others = [other for other in self.bound if other is not binding]
            shared = blocks & {block for other in others for block in self.blocks(other, len(other.request.tokens))}
            needed = blocks_for(num_tokens, self.block_size) * len(self.windows)
            assert before.num_free - self.kv.stats().num_free == needed - len(shared)
        return True

    def blocks(self, binding: Binding, end: int) -> list[tuple[int, int]]:
        """List group and block of a binding's first tokens."""
        if not isinstance(self.kv, PagedKV):
            return []
        tables = self.kv.tables[:, binding.row, : blocks_for(end, self.block_size)].tolist()
        return [(group, block) for group, blocks in enumerate(tables) for block in blocks if block]

    @precondition(lambda self: self.idle and len(self.in_flight) < 2)
    @rule(pick=picks, count=st.integers(1, 5), token=st.integers(0, 1))
    def compute(self, pick: int, count: int, token: int) -> None:
        """Put a chunk, or the next token, of one row into the step."""
        self.compute_row(self.idle[pick % len(self.idle)], count, token)

    @precondition(lambda self: self.idle and len(self.in_flight) < 2)
    @rule(count=st.integers(1, 5), token=st.integers(0, 1))
    def compute_all(self, count: int, token: int) -> None:
        """Put a chunk, or the next token, of all rows into the step."""
        for binding in self.idle:
            self.compute_row(binding, count, token)

    def compute_row(self, binding: Binding, count: int, token: int) -> None:
        """Put a row's next tokens into the step, `token` being what it samples after its prompt."""
        request, first = binding.request, binding.scheduled
        if len(request.tokens) >= self.kv.max_tokens():
            return
        end = min(first + count, len(request.tokens))
        is_new = end == first
        if is_new:
            end = first + 1
        if is_new or len(request.tokens) > first + 1:  # the last token of a prompt has its place
            before = self.kv.stats()
            if not self.kv.grow(binding.row, end):
                assert first % self.block_size == 0 or any(self.windows)
                assert self.kv.stats() == before
                return
        if is_new:
            request.tokens.append(token)
        binding.scheduled = end
        self.registrant = binding
        self.kv.commit(binding.row, end)
        self.work.append((binding, first, end))

    @precondition(lambda self: len(self.in_flight) < 2 and self.work)
    @rule()
    def submit(self) -> None:
        """Send the step off."""
        self.in_flight.append(Step(self.kv.take_changes(), self.work))
        self.num_steps += 1
        self.work = []

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks)
    def run(self, pick: int) -> None:
        """Run the oldest step; one time in three one of its rows fails."""
        step = self.in_flight.pop(0)
        self.storage.run(step)
        for binding, _, end in step.work:
            binding.written = end
        failed = step.work[pick % len(step.work)][0]
        if pick % 3 == 0 and not self.work:
            assert self.latest[failed.row] is failed
            self.fail(failed)

    def fail(self, failed: Binding) -> None:
        """Withdraw what a row registered; everything that was computed from it must go."""
        unsound = {failed}
        while more := {other for other in self.latest.values() if other.parents & unsound} - unsound:
            unsound |= more
        expected = {other.row for other in unsound if other.is_bound} - {failed.row}
        returned = self.kv.withdraw(failed.row)
        assert len(returned) == len(set(returned))
        if any(self.windows):  # what others wrote into blocks that left a window can't always be told from its own
            assert expected <= set(returned)
            unsound |= {self.latest[row] for row in returned}
        else:
            assert expected == set(returned)
        for binding in unsound:
            binding.is_unsound = True
        for binding in [failed, *(self.latest[row] for row in returned)]:
            if binding.is_bound:
                self.end(binding, requeue=binding is not failed)

    @precondition(lambda self: self.idle)
    @rule(pick=picks, requeue=st.booleans())
    def leave(self, pick: int, requeue: bool) -> None:
        """End or preempt a request; its steps may be in flight."""
        self.end(self.idle[pick % len(self.idle)], requeue)

    def end(self, binding: Binding, requeue: bool) -> None:
        """Release a row; what it computed soundly can be found at once."""
        request = binding.request
        sound = np.array(request.tokens[: binding.written], np.int32)
        self.registrant = binding
        self.kv.release(binding.row, sound)
        binding.is_bound = False
        binding.fence = self.num_steps
        (self.waiting if requeue else self.ended).append(request)
        is_ahead = any(self.windows) and binding.scheduled > binding.written
        if self.caching and not (binding.is_unsound or binding.was_reset or is_ahead):
            assert self.kv.match(request.keys, len(sound) + 1) >= len(sound) // self.block_size * self.block_size

    @precondition(lambda self: not self.work and not self.in_flight)
    @rule()
    def reset(self) -> None:
        """Forget the cache, between steps."""
        self.kv.reset()
        self.latest = {binding.row: binding for binding in self.bound}
        for binding in self.bound:
            binding.was_reset = True
        for request in self.waiting + self.ended:
            assert self.kv.match(request.keys, len(request.tokens)) == 0

    # --- what always holds ---

    @invariant()
    def holds_together(self) -> None:
        """Check the manager's own invariants, its counters, and its index against the one rebuilt from events."""
        if not hasattr(self, "kv"):
            return
        self.kv.check_invariants()
        stats = self.kv.stats()
        assert (stats.queries, stats.hits, stats.resume_hits) == (self.queries, self.hits, self.resume_hits)
        for request in self.waiting + self.ended[-5:]:
            num_tokens = len(request.tokens)
            assert self.kv.match(request.keys, num_tokens) == self.expected_match(request, num_tokens)

    def teardown(self) -> None:
        """Let everything end: all blocks are free."""
        if not hasattr(self, "kv"):
            return
        self.in_flight.append(Step(self.kv.take_changes(), self.work))
        while self.in_flight:
            self.storage.run(self.in_flight.pop(0))
        for binding in self.bound:
            self.end(binding, requeue=False)
        self.kv.check_invariants()
        assert self.kv.stats().num_free == self.kv.stats().num_blocks


class TwoGroupsMachine(KVMachine):
    """Two groups with pools of different sizes."""

    windows = (None, None)


class WindowMachine(KVMachine):
    """One group with a window; rows outgrow window and pool."""

    windows = (5,)
    max_blocks = 12


class WindowsMachine(KVMachine):
    """Groups with windows, and one without."""

    windows = (3, None, 6)
    max_blocks = 9


class NoCacheMachine(KVMachine):
    """Prefix caching is off."""

    caching = False


class SimpleMachine(KVMachine):
    """The other manager behind the same protocol."""

    caching = False

    def make(self, num_blocks: int) -> KVManager:
        """Build the manager under test."""
        return SimpleKV(min(num_blocks, self.max_blocks), self.block_size)


MACHINES = [KVMachine, TwoGroupsMachine, WindowMachine, WindowsMachine, NoCacheMachine, SimpleMachine]

TestOneGroup = KVMachine.TestCase
TestTwoGroups = TwoGroupsMachine.TestCase
TestWindow = WindowMachine.TestCase
TestWindows = WindowsMachine.TestCase
TestNoCache = NoCacheMachine.TestCase
TestSimpleKV = SimpleMachine.TestCase
TestOneGroup.settings = TestTwoGroups.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestWindow.settings = TestWindows.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
TestNoCache.settings = TestSimpleKV.settings = settings(max_examples=10, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("machine_class", MACHINES)
def test_on_a_long_random_way_each_row_reads_its_own_tokens(machine_class: type[KVMachine], seed: int) -> None:
    random_ = random.Random(seed)
    machine = machine_class()
    machine.start(random_.randint(3, 20))

    def pick() -> int:
        return random_.randrange(60)

    events: list[tuple[int, Callable[[], bool], Callable[[], None]]] = [
        (6, lambda: True, lambda: machine.admit_new(pick() % 10, random_.choices([0, 1], k=pick() % 4), pick() % 10)),
        (4, lambda: bool(machine.waiting), machine.resume),
        (4, lambda: bool(machine.idle), lambda: machine.compute(pick(), 1 + pick() % 5, pick() % 2)),
        (6, lambda: bool(machine.idle), lambda: machine.compute_all(1 + pick() % 5, pick() % 2)),
        (8, lambda: bool(machine.work) and len(machine.in_flight) < 2, machine.submit),
        (8, lambda: bool(machine.in_flight), lambda: machine.run(pick())),
        (3, lambda: bool(machine.idle), lambda: machine.leave(pick(), random_.random() < 0.4)),
        (1, lambda: not machine.work and not machine.in_flight, machine.reset),
    ]
    weights = [weight for weight, _, _ in events]
    for _, is_possible, happen in random_.choices(events, weights, k=600):
        if is_possible():
            happen()
            machine.holds_together()
    machine.teardown()

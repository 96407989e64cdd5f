"""The side of `make bench-overhead` that runs Headrace's scheduler, as sys.argv[1] names it, and its block pool."""

import sys
from collections import deque
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from loads import BLOCK_SIZE, MAX_MODEL_LEN, STOP_ID, serve

from headrace.core.columns import Ints, ints, pack_ints
from headrace.core.config import Config, EngineConfig
from headrace.core.messages import Admit, KVGroup, RequestId, RowSampling, RunnerReady, StepDone
from headrace.core.providers import CoreContext, SchedulerContext
from headrace.kv.pool import BlockPool
from headrace.kv.prefix import block_hasher, root_digest
from headrace.plugins.manager import load_plugins

SAMPLING = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


class Headrace:
    """A scheduler with `paged` and `fcfs`, and an account of what its rows have computed."""

    version = version("headrace")

    def __init__(self, scheduler: str) -> None:
        registry = load_plugins(Config())
        self._build = [
            registry.provider(*role).build for role in (("scheduler", scheduler), ("kv", "paged"), ("policy", "fcfs"))
        ]
        self._hash, self._root = block_hasher(BLOCK_SIZE), root_digest(None)
        self._count = 0

    def start(self, num_rows: int, num_batched_tokens: int, num_blocks: int) -> None:
        """Begin anew."""
        config = EngineConfig(max_num_seqs=num_rows, max_num_batched_tokens=num_batched_tokens, block_size=BLOCK_SIZE)
        facts = RunnerReady(
            vocab_size=1000, max_model_len=MAX_MODEL_LEN, groups=(KVGroup(1, num_blocks),), bytes_per_block=1
        )
        core = CoreContext(config, facts, 2 * num_rows, lambda: 0.0)
        build_scheduler, build_kv, build_policy = self._build
        self._scheduler = build_scheduler(SchedulerContext(core, build_kv(core, None), build_policy(core, None)), None)
        self._in_flight: deque[tuple[int, Ints]] = deque()
        self._computed, self._known = np.zeros((2, 2 * num_rows), np.int32)

    def add(self, prompt: list[int], max_tokens: int) -> None:
        """Submit a request, hashed as the input process does."""
        self._count += 1
        admit = Admit(
            request=RequestId(0, self._count, 0),
            token_ids=pack_ints(prompt),
            num_prompt=len(prompt),
            max_tokens=max_tokens,
            min_tokens=0,
            stop_ids=(STOP_ID,),
            sampling=SAMPLING,
            eos_ids=(STOP_ID,),
            block_root=self._root,
            block_hashes=tuple(self._hash(self._root, (), np.array(prompt, np.int32))),
        )
        self._scheduler.add(admit)

    def schedule(self) -> None:
        """Make a step."""
        self._made = self._scheduler.schedule()

    def record(self) -> None:
        """Note which of its rows sample."""
        step = self._made
        for bind in step.bound:
            self._computed[bind.row], self._known[bind.row] = bind.num_computed, len(bind.token_ids) // 4
        rows = ints(step.rows)
        self._computed[rows] += ints(step.num_tokens)
        num_new: Ints = (self._computed[rows] == self._known[rows]).astype(np.int32)
        self._known[rows] += num_new
        self._in_flight.append((step.step, num_new))

    def compute(self, new_id: Callable[[], int]) -> None:
        """Make up a result."""
        step, num_new = self._in_flight.popleft()
        token_ids = [new_id() for _ in range(int(num_new.sum()))]
        self._done = StepDone(step, pack_ints(num_new), pack_ints(token_ids))

    def update(self) -> None:
        """Take it in."""
        self._output = self._scheduler.update(self._done)

    def count_ended(self) -> int:
        """Count requests that ended."""
        return len(self._output.ended) if self._output else 0

    def make_pool(self, num_blocks: int) -> Callable[[int, int], None]:
        """Make a block pool."""
        pool = BlockPool(num_blocks)

        def turn(count: int, times: int) -> None:
            if count == 1:
                for _ in range(times):
                    pool.give((pool.take(),))
            else:
                for _ in range(times):
                    pool.give(reversed(pool.take_many(count)))

        return turn


if __name__ == "__main__":
    serve(Headrace(sys.argv[1]))

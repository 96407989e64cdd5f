"""A scheduler, its KV manager and a runner without any event loop: steps happen when a test says so."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from proposers import Guesser

from headrace.core.columns import ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.extensions import Proposer
from headrace.core.interfaces import BlockKeys, Policy
from headrace.core.messages import Admit, Ended, RequestId, RowSampling, RunStep, StepDone, StepOutput
from headrace.core.providers import CoreContext, RunnerContext, SchedulerContext
from headrace.kv.paged import PagedKV
from headrace.kv.prefix import block_hasher, root_digest
from headrace.kv.simple import SimpleKV
from headrace.runners.kvhash import KVHashModel, KVHashOptions
from headrace.runners.worker import StandaloneWorker, make_worker
from headrace.schedulers.plain import PlainScheduler
from headrace.schedulers.policies.fcfs import FCFS
from headrace.schedulers.table import TableScheduler

SCHEDULERS = {"plain": PlainScheduler, "table": TableScheduler}
GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)


class Harness:
    """Holds every part of a core but its loop, and what came out of it.

    tokens: generated ids by request, ended: how requests ended, published: all outputs in order.
    """

    default_scheduler = "plain"

    def __init__(
        self,
        policy: Policy | None = None,
        kv: str = "paged",
        runner: StandaloneWorker | None = None,
        num_groups: int = 1,
        windows: tuple[int, ...] = (),
        depth: int | None = None,
        scheduler: str | None = None,
        proposer: Proposer | None = None,
        **config: Any,
    ) -> None:
        self.config = EngineConfig(**{"max_model_len": 1024, **config})
        self.now = 0.0
        max_rows = 2 * self.config.max_num_seqs
        context = RunnerContext(self.config, None, max_rows=max_rows, clock=lambda: self.now)
        options = KVHashOptions(num_groups=max(num_groups, len(windows)), windows=windows)
        if self.config.num_speculative_tokens:
            context = replace(context, proposer=proposer or Guesser(options))
        self.worker = runner or make_worker(KVHashModel(self.config, options), context)
        self.facts = self.worker.load()
        core = CoreContext(self.config, self.facts, max_rows, lambda: self.now)
        self.kv = PagedKV.from_context(core) if kv == "paged" else SimpleKV.from_context(core)
        self.policy = policy or FCFS()
        self.scheduler = SCHEDULERS[scheduler or self.default_scheduler](SchedulerContext(core, self.kv, self.policy))
        self.depth = depth or (2 if self.config.async_scheduling else 1)
        self.in_flight: deque[RunStep] = deque()
        self.tokens: dict[RequestId, list[int]] = {}
        self.ended: dict[RequestId, Ended] = {}
        self.published: list[StepOutput] = []
        self._rows: dict[int, RequestId] = {}
        self._counter = 0

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        sampling: RowSampling = GREEDY,
        salt: str | None = None,
        **admit: Any,
    ) -> RequestId:
        """Submit a request."""
        self._counter += 1
        request = RequestId(0, self._counter, 0)
        root = root_digest(salt)
        hashes = block_hasher(self.config.block_size)(root, (), np.array(prompt, dtype=np.int32))
        given = {
            "request": request,
            "token_ids": pack_ints(prompt),
            "num_prompt": len(prompt),
            "max_tokens": max_tokens,
            "min_tokens": sampling.min_tokens,
            "stop_ids": (),
            "sampling": sampling,
            "arrival": float(self._counter),
            "block_root": root,
            "block_hashes": tuple(hashes) if self.config.enable_prefix_caching else (),
            "read_cache": sampling.prompt_logprobs is None,
        }
        self.scheduler.add(Admit(**{**given, **admit}))
        self.tokens[request] = []
        return request

    def abort(self, *requests: RequestId) -> None:
        """End requests early."""
        self._publish(self.scheduler.abort(requests))

    def stop(self, request: RequestId, num_tokens: int) -> None:
        """End a request whose text hit a stop string."""
        self.scheduler.stop(request, num_tokens)
        self.ended[request] = Ended(request, "stop")

    def pause(self, *, admissions: bool, steps: bool) -> None:
        """Turn admissions and steps off, or on again."""
        self.scheduler.pause(admissions=admissions, steps=steps)

    def reset_prefix_cache(self, force: bool) -> None:
        """Forget cached blocks."""
        self.scheduler.reset_prefix_cache(force)

    def schedule(self) -> RunStep | None:
        """Make one step and put it in flight."""
        step = self.scheduler.schedule()
        if step is not None:
            assert 0 < ints(step.num_tokens).sum() <= self.config.max_num_batched_tokens
            self.in_flight.append(step)
        return step

    def complete(self, done: StepDone | None = None) -> None:
        """Compute the oldest step in flight and take in its result."""
        step = self.in_flight.popleft()
        self._publish(self.scheduler.update(done or self.worker.execute(step)))

    def turn(self) -> RunStep | None:
        """Do what the engine's loop does once: fill the pipeline, then drain one step. Returns the last step made."""
        made = None
        while len(self.in_flight) < self.depth and (step := self.schedule()):
            made = step
        if self.in_flight:
            self.complete()
        self.check()
        return made

    def run(self, max_steps: int = 10_000) -> None:
        """Go on until nothing is left to do."""
        for _ in range(max_steps):
            self.turn()
            if not self.in_flight and not self.scheduler.unfinished():
                return
        raise AssertionError(f"still unfinished after {max_steps} steps: {self.scheduler.unfinished()}")

    def check(self) -> None:
        """Check every invariant."""
        self.scheduler.check_invariants()

    def check_idle(self) -> None:
        """Check that nothing is left of any request."""
        stats = self.scheduler.stats()
        assert not self.in_flight and not self.scheduler.unfinished()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.kv.num_free == stats.kv.num_blocks
        assert self.tokens.keys() == self.ended.keys(), "every request ends exactly once"
        self.check()

    def close(self) -> None:
        """End the worker's thread."""
        self.worker.close()

    def reason(self, request: RequestId) -> str | None:
        """Tell how a request ended."""
        return self.ended[request].reason if request in self.ended else None

    def _publish(self, output: StepOutput | None) -> None:
        if output is None:
            return
        self.published.append(output)
        for bound in output.bound:
            self._rows[bound.row] = bound.request
        at, token_ids = 0, ints(output.token_ids).tolist()
        for row, count in zip(ints(output.rows).tolist(), ints(output.num_new).tolist(), strict=True):
            request = self._rows[row]
            assert request not in self.ended, "no token after the end"
            self.tokens[request] += token_ids[at : at + count]
            at += count
        for ended in output.ended:
            assert ended.request not in self.ended, "a request ends once"
            self.ended[ended.request] = ended


def keys_of(prompt: Sequence[int], block_size: int, salt: str | None = None) -> BlockKeys:
    """Hash a prompt as the input process does."""
    root = root_digest(salt)
    return BlockKeys(root, block_hasher(block_size)(root, (), np.array(prompt, dtype=np.int32)))

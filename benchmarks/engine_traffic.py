"""What travels to a runner per step, beside what would if it kept no state: a part of `make bench-engine`."""

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np

from headrace import Engine, SamplingParams
from headrace.core.columns import ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.interfaces import StepHandle
from headrace.core.messages import BindRow, RunnerReady, RunStep
from headrace.core.providers import RunnerContext
from headrace.runners.batch import WorkerState
from headrace.runners.sim import SimOptions
from headrace.runners.sim import build as build_sim

BLOCK_SIZE = 16


class Counted:
    """A simulated runner that notes the bytes of each step, and those of one that says all about its rows."""

    def __init__(self, config: EngineConfig) -> None:
        import time

        max_rows = 2 * config.max_num_seqs
        options = SimOptions(0.0, 0.0, 0.0, 0.0, vocab_size=512)
        self._runner = build_sim(RunnerContext(config, None, max_rows=max_rows, clock=time.monotonic), options)
        self._state = WorkerState(self._runner.load(), max_rows, BLOCK_SIZE)
        self._encoder = msgspec.msgpack.Encoder()
        self.differences: list[int] = []
        self.whole: list[int] = []

    def load(self) -> RunnerReady:
        """Return the facts."""
        return self._runner.load()

    def submit(self, step: RunStep, wake: Callable[[], None]) -> StepHandle:
        """Note the step, and pass it on."""
        batch = self._state.apply(step)
        rows = batch.rows[batch.samples]
        self._state.append(rows, np.zeros_like(rows))
        self.differences.append(len(self._encoder.encode(step)))
        self.whole.append(len(self._encoder.encode(self._said_whole(step))))
        return self._runner.submit(step, wake)

    def close(self) -> None:
        """Pass it on."""
        self._runner.close()

    def _said_whole(self, step: RunStep) -> RunStep:
        state, rows = self._state, ints(step.rows).tolist()
        bound = tuple(
            BindRow(
                row,
                state.token_ids[row, : state.num_ids[row]].tobytes(),
                int(state.num_prompt[row]),
                int(state.num_computed[row]),
                state.sampling[row],
            )
            for row in rows
        )
        tables = [state.tables[0, row][state.tables[0, row] > 0] for row in rows]
        changes = [(0, row, i, block) for row, table in zip(rows, tables, strict=True) for i, block in enumerate(table)]
        return RunStep(step.step, step.rows, step.num_tokens, bound, pack_ints(np.array(changes, dtype=np.int32)))


async def state_traffic(num_rows: int) -> dict[str, float]:
    """Return bytes per step, of differences and of whole states, for requests of 128 tokens in and 64 out."""
    config = EngineConfig(max_num_seqs=num_rows, max_model_len=1024, num_kv_blocks=20 * num_rows, block_size=BLOCK_SIZE)
    runner = Counted(config)
    options = {"tokenizer": {"vocab_size": 512}}
    settings = {"max_num_seqs": num_rows, "max_model_len": 1024, "num_kv_blocks": 20 * num_rows}
    async with Engine(runner=runner, tokenizer="symbols", options=options, block_size=BLOCK_SIZE, **settings) as engine:
        params = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
        prompts = np.random.default_rng(0).integers(100, 512, (3 * num_rows, 128)).tolist()
        await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
    sent, whole = sum(runner.differences) / len(runner.differences), sum(runner.whole) / len(runner.whole)
    return {"differences": sent, "whole_states": whole, "saved": 1 - sent / whole}

"""The side of `make bench-cpu` that runs Headrace: cpu_headrace.py MODEL CONFIG."""

import asyncio
import sys
import time
from importlib.metadata import version

import cpu_side

from headrace import Engine, SamplingParams

STEP_MS = 1000.0
"""Prompts first, as llama-batched-bench has it: by default steps are short, and streams would end before all decode."""


class Headrace:
    """An engine on this process's loop, as LLM has it."""

    version = version("headrace")
    peak_memory_mb = staticmethod(cpu_side.peak_memory_mb)
    start_s = staticmethod(cpu_side.age_s)

    def __init__(self, model: str, config: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = Engine(model, config=config, processes="inline", step_ms=STEP_MS)
        self._loop.run_until_complete(self._engine.start())

    def generate(self, prompts: list[list[int]], max_tokens: int) -> cpu_side.Figures:
        """Run these prompts at once."""
        return self._loop.run_until_complete(self._generate(prompts, max_tokens))

    async def _generate(self, prompts: list[list[int]], max_tokens: int) -> cpu_side.Figures:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        arrivals: list[list[float]] = [[] for _ in prompts]

        async def read(index: int, prompt: list[int]) -> None:
            async for chunk in self._engine.stream(prompt, params):
                arrivals[index] += [time.perf_counter()] * len(chunk.token_ids)

        started = time.perf_counter()
        await asyncio.gather(*(read(index, prompt) for index, prompt in enumerate(prompts)))
        return cpu_side.figures(started, arrivals)


if __name__ == "__main__":
    answers = cpu_side.take_stdout()
    cpu_side.serve(Headrace(sys.argv[1], sys.argv[2]), answers)

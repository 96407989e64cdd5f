"""The side of `make bench-cpu` that runs transformers' continuous batching: cpu_transformers.py FOLDER DTYPE."""

import sys
import time

import cpu_side
import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE_SIZE = 256


class Transformers:
    """A manager that lives as long as the process."""

    version = transformers.__version__
    peak_memory_mb = staticmethod(cpu_side.peak_memory_mb)
    start_s = staticmethod(cpu_side.age_s)

    def __init__(self, folder: str, dtype: str) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        self._manager = model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=64),
            ContinuousBatchingConfig(
                num_blocks=cpu_side.POOL_TOKENS // PAGE_SIZE,
                page_size=PAGE_SIZE,
                max_batch_tokens=1024,
                max_requests_per_batch=cpu_side.MAX_STREAMS,
            ),
        )
        self._manager.start()

    def generate(self, prompts: list[list[int]], max_tokens: int) -> cpu_side.Figures:
        """Run these prompts at once."""
        started = time.perf_counter()
        arrivals: dict[str, list[float]] = {}
        seen: dict[str, int] = {}
        for prompt in prompts:
            request_id = self._manager.add_request(prompt, max_new_tokens=max_tokens, streaming=True, eos_token_id=-1)
            arrivals[request_id] = []
            seen[request_id] = 0
        unfinished = len(prompts)
        while unfinished:
            output = self._manager.get_result(timeout=60)
            now = time.perf_counter()
            if output is None:
                raise RuntimeError("no token within 60 s")
            new = len(output.generated_tokens) - seen[output.request_id]
            seen[output.request_id] += new
            arrivals[output.request_id] += [now] * new
            unfinished -= output.is_finished()
        return cpu_side.figures(started, list(arrivals.values()))

    def close(self) -> None:
        """End the manager's thread."""
        self._manager.stop()


if __name__ == "__main__":
    answers = cpu_side.take_stdout()
    side = Transformers(sys.argv[1], sys.argv[2])
    cpu_side.serve(side, answers)
    side.close()

"""The side of `make bench-cpu` that runs vLLM, under the Python that has it: cpu_vllm.py FOLDER DTYPE."""

import sys
import time

import cpu_side
import vllm
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind


class VLLM:
    """An LLM as vLLM makes it by default, whose engine is stepped as LLM.generate does."""

    version = vllm.__version__
    peak_memory_mb = staticmethod(cpu_side.peak_memory_mb)
    start_s = staticmethod(cpu_side.age_s)

    def __init__(self, folder: str, dtype: str) -> None:
        self._engine = LLM(
            folder,
            dtype=dtype,
            max_model_len=cpu_side.MAX_MODEL_LEN,
            max_num_seqs=cpu_side.MAX_STREAMS,
            kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True,
        ).llm_engine
        self._count = 0

    def generate(self, prompts: list[list[int]], max_tokens: int) -> cpu_side.Figures:
        """Run these prompts at once."""
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        arrivals: dict[str, list[float]] = {}
        started = time.perf_counter()
        for prompt in prompts:
            self._count += 1
            arrivals[str(self._count)] = []
            self._engine.add_request(str(self._count), {"prompt_token_ids": prompt}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                arrivals[output.request_id] += [now] * len(output.outputs[0].token_ids)
        return cpu_side.figures(started, list(arrivals.values()))


if __name__ == "__main__":
    answers = cpu_side.take_stdout()
    cpu_side.serve(VLLM(sys.argv[1], sys.argv[2]), answers)

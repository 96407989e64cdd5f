"""The side of `make bench-cpu` that runs llama.cpp's own llama-batched-bench: cpu_llama.py TOOLS FILE.

The tool computes made-up tokens, as many as the prompts have, and samples nothing. It loads the file anew each time,
which isn't counted.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import cpu_side


class Llama:
    """The tool and a file."""

    def __init__(self, tools: Path, file: str) -> None:
        self._file = file
        self._tools = tools
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(tools)}
        told = subprocess.run(
            [tools / "llama-server", "--version"], env=self._environment, capture_output=True, text=True, check=True
        )
        self.version = next(line for line in (told.stderr + told.stdout).splitlines() if line.startswith("version"))

    def generate(self, prompts: list[list[int]], max_tokens: int) -> cpu_side.Figures:
        """Run as many prompts of the same length at once."""
        lengths = {"-npp": len(prompts[0]), "-ntg": max_tokens, "-npl": len(prompts), "-c": cpu_side.POOL_TOKENS}
        command = [self._tools / "llama-batched-bench", "-m", self._file, "--output-format", "jsonl"]
        command += [str(part) for option in lengths.items() for part in option]
        started = time.perf_counter()
        told = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        self._last_run_s = time.perf_counter() - started
        lines = [line for line in told.stdout.splitlines() if line.startswith("{")]
        if told.returncode or not lines:
            raise RuntimeError(f"llama-batched-bench ended with {told.returncode}: {told.stderr[-2000:]}")
        row = json.loads(lines[-1])
        return {"prefill_s": row["t_pp"], "decode_tokens_per_s": row["speed_tg"], "total_s": row["t"]}

    def start_s(self) -> float:
        """Return how long the last run took, from start to end."""
        return self._last_run_s

    def peak_memory_mb(self) -> float:
        """Return the most that a run of the tool has had, the mapped file included."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    answers = cpu_side.take_stdout()
    cpu_side.serve(Llama(Path(sys.argv[1]), sys.argv[2]), answers)

"""Two versions of the native runner's sources, step by step in turns, in one process: for changes of a few percent.

    git worktree add /tmp/before HEAD
    python benchmarks/native_pair.py smollm2-135m-instruct /tmp/before/runners/native/csrc runners/native/csrc

What a shared machine does to one step it does to its neighbour too, so that the median ratio of pairs is steadier than
either time. Both versions need the same C interface. Prints milliseconds and how much faster the second one is.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from native_kernels import BLOCK_SIZE, context_of, decode_step

from headrace.core.config import EngineConfig
from headrace.core.model_files.resolve import resolve_model
from headrace.runners.native import build
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions

CONTEXT = 160
TOKEN_IDS = 1000


def main() -> None:
    """Measure each number of rows that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="GGUF file, folder or name")
    parser.add_argument("sources", nargs=2, type=Path, help="folders of C++ sources, the new one second")
    parser.add_argument("--run", default="as-is/fast", help="weights/mode")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--pairs", type=int, default=100)
    given = parser.parse_args()
    for rows in given.batches:
        times = measure([load(given, sources, rows) for sources in given.sources], rows, given.pairs)
        ratios = np.log(times[0] / times[1])
        faster, error = np.expm1(np.median(ratios)), 1.25 * ratios.std() / np.sqrt(len(ratios))
        before, after = np.median(times, axis=1) * 1e3
        print(f"{given.run:18}  B={rows:<3} {before:8.2f} {after:8.2f} ms  {faster:+.1%} +- {error:.1%}", flush=True)


def load(given: argparse.Namespace, sources: Path, rows: int) -> NativeModel:
    """Load the model into a library made of these sources."""
    weights, mode = given.run.split("/")
    build.SOURCES = sources
    config = EngineConfig(num_kv_blocks=max(rows * (CONTEXT // BLOCK_SIZE + 1), 600))
    context = context_of(config, resolve_model(given.model), rows)
    model = NativeModel(context, NativeOptions(mode=mode, weights=weights))
    model.load()
    return model


def measure(models: list[NativeModel], rows: int, pairs: int) -> np.ndarray:
    """Time steps of one token of each row in turns, another model first each time; returns seconds, (2, pairs)."""
    steps = [decode_step(model, rows, CONTEXT, TOKEN_IDS) for model in models]
    times = np.zeros((2, pairs))
    for pair in range(-1, pairs):  # the first one warms up
        for which in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            models[which].forward(steps[which])
            times[which, pair] = time.perf_counter() - started
    for model in models:
        model.close()
    return times


if __name__ == "__main__":
    main()

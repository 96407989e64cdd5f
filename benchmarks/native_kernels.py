"""Tokens per second of the native runner's forward pass alone: decode at several batch sizes, and prefill.

    python benchmarks/native_kernels.py smollm2-135m-instruct --runs as-is/fast as-is/accurate float16/accurate

Prints medians, and the best in brackets. Everything is measured through the StepModel, without an engine around it.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.core.config import Config, EngineConfig
from headrace.core.interfaces import Batch
from headrace.core.model_files.resolve import resolve_model
from headrace.core.providers import RunnerContext, TextContext
from headrace.plugins.manager import load_plugins
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions

BLOCK_SIZE = 16
REPEATS = 9
PREFILLS = ((1, 512), (8, 128))


def main() -> None:
    """Measure each run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="GGUF file, folder or name")
    parser.add_argument("--runs", nargs="+", default=["as-is/fast", "as-is/accurate", "float16/accurate"])
    parser.add_argument("--kv", default="auto", choices=["auto", "float32", "float16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 32, 64])
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    for run in given.runs:
        weights, mode = run.split("/")
        rows = max(given.batches)
        config = EngineConfig(num_kv_blocks=max(rows * (given.context // BLOCK_SIZE + 1), 600), threads=given.threads)
        context = context_of(config, resolve_model(given.model), rows)
        model = NativeModel(context, NativeOptions(mode=mode, weights=weights, kv_dtype=given.kv))
        vocab_size = model.load().vocab_size
        cells = [f"B={rows}: {decode(model, rows, given.context, vocab_size)}" for rows in given.batches]
        cells += [f"{rows}x{length}: {prefill(model, rows, length, vocab_size)}" for rows, length in PREFILLS]
        model.close()
        print(f"{run:18}", *cells, f"load {os.getloadavg()[0]:.1f}", sep="  ", flush=True)


def context_of(config: EngineConfig, path: Path, rows: int) -> RunnerContext:
    """Make what the runner is built from."""
    families = load_plugins(Config()).families(TextContext(config, path))
    return RunnerContext(config, path, max_rows=2 * rows, clock=time.monotonic, families=families)


def decode(model: NativeModel, rows: int, context: int, vocab_size: int) -> str:
    """Measure one token of each of so many rows, whose K/V hold `context` tokens."""
    step = decode_step(model, rows, context, vocab_size)
    return rate(lambda: model.forward(step), rows, REPEATS * max(1, 16 // rows))


def decode_step(model: NativeModel, rows: int, context: int, vocab_size: int) -> Batch:
    """Fill the K/V of so many rows, and make the step of the next token of each."""
    stride = context // BLOCK_SIZE + 1
    for first in range(0, rows, 4):
        model.forward(batch_of(range(first, min(first + 4, rows)), stride, 0, context - 1, vocab_size))
    return batch_of(range(rows), stride, context - 1, 1, vocab_size)


def prefill(model: NativeModel, rows: int, length: int, vocab_size: int) -> str:
    """Measure prompts of this length."""
    step = batch_of(range(rows), -(-length // BLOCK_SIZE), 0, length, vocab_size)
    return rate(lambda: model.forward(step), rows * length, 3)


def rate(step: Callable[[], None], tokens: int, repeats: int) -> str:
    """Time a step; returns tokens per second, median and best."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return f"{tokens / float(np.median(times)):.0f} ({tokens / min(times):.0f})"


def batch_of(rows: range, stride: int, begin: int, count: int, vocab_size: int) -> Batch:
    """Make a step of `count` random tokens for each row, row r having the blocks from 1 + r * stride on."""
    tables = np.array([[1 + row * stride + block for block in range(stride)] for row in rows], dtype=np.int32)
    positions = np.arange(begin, begin + count, dtype=np.int32)
    slots = tables[:, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    return Batch(
        rows=np.arange(len(rows), dtype=np.int32),
        token_ids=np.random.default_rng(begin).integers(0, vocab_size, len(rows) * count).astype(np.int32),
        positions=np.tile(positions, len(rows)),
        starts=np.arange(0, len(rows) * count + 1, count, dtype=np.int32),
        context_lens=np.full(len(rows), begin + count, dtype=np.int32),
        slots=[slots.reshape(-1)],
        tables=[tables],
        samples=np.arange(len(rows), dtype=np.int32),
        logit_places=np.arange(1, len(rows) + 1, dtype=np.int32) * np.int32(count) - np.int32(1),
    )


if __name__ == "__main__":
    main()

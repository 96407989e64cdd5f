"""Mutated model files: sound ones made here, changed at random from a seed, and everything that reads them.

Run as a script it checks seeds for some seconds in a process of its own, whose memory is limited:
`fuzzing.py FOLDER FIRST_SEED SECONDS`. It tells each seed before it is checked, so that a crash or hang is known by it.
"""

import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import families
import numpy as np
from fuzz_models import FAMILIES, QUANTS, folder_files, gguf_keys, piece_files, sound_models, tiny_gguf
from fuzz_mutations import mutate_bytes, mutate_json, mutate_keys, mutate_safetensors

from headrace.core.config import EngineConfig
from headrace.core.errors import HeadraceError
from headrace.core.interfaces import Batch, StepModel
from headrace.core.model_files.cache import cache_dir
from headrace.core.model_files.metadata import read_metadata
from headrace.core.model_files.recommended import recommended_params
from headrace.core.providers import RunnerContext
from headrace.core.text.tokenizer import FolderTokenizer, load_tokenizer

MAX_CPU_S = 2.0
"""Of one case."""
MAX_GROWTH_BYTES = 500 << 20
"""Of the process, in address space and in memory, over all cases."""

ONLY_TORCH = ("gpt2 file", "gpt2 folder")
"""Sound models that runner `native` refuses."""
BLOCK_SIZE = EngineConfig().block_size

Mutate = Callable[[random.Random, bytes], bytes]
_MUTATIONS: dict[str, Mutate] = {".json": mutate_json, ".safetensors": mutate_safetensors}


def make_case(seed: int, folder: Path) -> Path:
    """Write the model of this seed; returns its file or folder."""
    rng = random.Random(seed)
    family = rng.choice(FAMILIES)
    if rng.randrange(2):
        keys, quant = gguf_keys(rng.choice(["gpt2", "llama", "t5"]), family), rng.choice(list(QUANTS))
        if rng.randrange(3):
            content = tiny_gguf(mutate_keys(rng, keys), family, quant)
        else:
            content = mutate_bytes(rng, tiny_gguf(keys, family, quant))
        (folder / "model.gguf").write_bytes(content)
        return folder / "model.gguf"
    files = folder_files(family) if rng.randrange(3) else piece_files()
    name = rng.choice([*files, "config.json", "tokenizer.model" if "tokenizer.model" in files else "tokenizer.json"])
    files[name] = _MUTATIONS.get(Path(name).suffix, mutate_bytes)(rng, files[name])
    path = folder / "model"
    path.mkdir()
    for file, content in files.items():
        (path / file).write_bytes(content)
    return path


def use(model: Path, with_weights: bool) -> set[str]:
    """Do everything with a model that reads its files; returns the errors met. Raises any that isn't Headrace's."""
    errors = set()
    steps: list[Callable[[Path], object]] = [read_metadata, recommended_params, use_tokenizer]
    for step in [*steps, use_torch, use_native] if with_weights else steps:
        try:
            step(model)
        except HeadraceError as error:
            errors.add(type(error).__name__)
    return errors


def use_files(files: dict[str, bytes], folder: Path, with_weights: bool) -> set[str]:
    """Write a model's files and use it; returns the errors met."""
    folder.mkdir()
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return use(folder / "model.gguf" if "model.gguf" in files else folder, with_weights)


def use_tokenizer(model: Path) -> None:
    """Convert a tokenizer, then encode, decode and fill the chat template; one failing prompt ends it."""
    tokenizer: FolderTokenizer = load_tokenizer(model)
    for text in ("hello <|im_end|> \t\n x", "😀\x00<b>", ""):
        ids = tokenizer.encode(text)
        decoder = tokenizer.detokenizer(ids, skip_special_tokens=True)
        decoder.push(ids)
        decoder.flush()
        tokenizer.decode(ids, skip_special_tokens=False)
    for token_id in (0, 1, 299, 1 << 20):
        tokenizer.token_text(token_id)
        tokenizer.detokenizer((), skip_special_tokens=False).push((token_id,))
    tokenizer.render_chat([{"role": "user", "content": "hello"}])


def use_torch(model: Path) -> None:
    """Load the model in runner `torch` and compute some tokens."""
    from headrace.runners.torch_cpu.model import TorchModel

    _compute(TorchModel(_context(model)))


def use_native(model: Path) -> None:
    """Load the model in runner `native` and compute some tokens."""
    from headrace.runners.native.model import NativeModel
    from headrace.runners.native.options import NativeOptions

    _compute(NativeModel(_context(model), NativeOptions()))


def _context(model: Path) -> RunnerContext:
    config = EngineConfig(max_model_len=32, num_kv_blocks=4, threads=1)
    return RunnerContext(config, model, max_rows=2, clock=time.monotonic, families=families.FAMILIES)


def _compute(runner: StepModel) -> None:
    try:
        ready = runner.load()
        count = min(2, ready.max_model_len)
        positions = np.arange(count, dtype=np.int32)
        token_ids = positions % ready.vocab_size
        slots = [positions.astype(np.int64) + BLOCK_SIZE for _ in ready.groups]
        tables = [np.ones((1, 2), np.int32) for _ in ready.groups]
        row, ends, counts = np.zeros(1, np.int32), np.array([0, count], np.int32), np.array([count], np.int32)
        runner.forward(Batch(row, token_ids, positions, ends, counts, slots, tables, row, ends[1:] - 1))
        runner.logits(np.array([count - 1], np.int32))
    finally:
        runner.close()


def check_seed(seed: int, folder: Path, with_weights: bool) -> set[str]:
    """Check one seed in an empty folder; returns the errors met. Raises AssertionError if it took too long."""
    folder.mkdir()
    try:
        model = make_case(seed, folder)
        started = time.process_time()
        errors = use(model, with_weights)
        taken = time.process_time() - started
        assert taken < MAX_CPU_S, f"seed {seed} took {taken:.1f} s"
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(cache_dir() / "tokenizers", ignore_errors=True)
    return errors


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main(folder: Path, first_seed: int, seconds: float) -> None:
    """Check seeds one after the other; the last line tells how many were sound and how often each error came."""
    counts: dict[str, int] = {}
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for name, files in sound_models().items():
        errors = use_files(files, folder / name, with_weights=True)
        refused = {"UnsupportedModel"} if name in ONLY_TORCH else set()
        assert errors == refused, f"{name} is sound, but gave {errors}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    limit = _address_space() + MAX_GROWTH_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    deadline = time.monotonic() + seconds
    seed = first_seed
    while time.monotonic() < deadline:
        print(seed, flush=True)
        for error in check_seed(seed, folder / "case", True) or {"sound"}:
            counts[error] = counts.get(error, 0) + 1
        seed += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    assert grown < MAX_GROWTH_BYTES, f"memory grew by {grown >> 20} MiB"
    print(json.dumps({"seeds": seed - first_seed, "grown_mib": grown >> 20, "errors": counts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))

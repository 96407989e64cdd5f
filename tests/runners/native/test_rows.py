"""Whole steps in one call, against the same steps in Python: same tokens, same rows afterwards."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from native_models import load_native
from random_requests import random_request
from tiny_families import tiny
from tiny_llama import save_folder, tiny_llama

from headrace.core.columns import ints, pack_ints
from headrace.core.messages import BindRow, RowSampling, RunStep
from headrace.runners.native.model import NativeModel
from headrace.runners.worker import StandaloneWorker

MAX_ROWS, BLOCK_SIZE, LONGEST, BLOCKS_PER_ROW, VOCAB = 6, 16, 90, 6, 256
GREEDY = RowSampling(0.0, 0, 1.0, 0.0, 0)


def worker_of(model: NativeModel, is_whole: bool) -> StandaloneWorker:
    advance = model.advance if is_whole else None
    worker = StandaloneWorker(model, MAX_ROWS, BLOCK_SIZE, time.monotonic, sampler=model.sample, advance=advance)
    worker.load()
    return worker


def bind(worker: StandaloneWorker, row: int, prompt: list[int], sampling: RowSampling) -> tuple[BindRow, bytes]:
    """Make the parts of a step that give a row a request, and blocks for its longest sequence."""
    blocks = range(1 + row * BLOCKS_PER_ROW, 1 + (row + 1) * BLOCKS_PER_ROW)
    groups = range(worker.state.num_groups)
    tables = [(group, row, index, block) for group in groups for index, block in enumerate(blocks)]
    return BindRow(row, pack_ints(prompt), len(prompt), 0, sampling), np.array(tables, dtype=np.int32).tobytes()


def random_steps(worker: StandaloneWorker, seed: int) -> Iterator[RunStep]:
    """Make steps that mix prefill, decoding, new requests and rows without work; the worker is where they lead."""
    rng = np.random.default_rng(seed)
    for number in range(1, 40):
        rows = rng.permutation(MAX_ROWS)[: rng.integers(1, MAX_ROWS + 1)].tolist()
        bound, tables = [], b""
        for row in rows:
            num_ids = int(worker.state.num_ids[row])
            if num_ids == 0 or num_ids >= LONGEST or rng.random() < 0.05:
                prompt = rng.integers(0, VOCAB, rng.integers(1, 60)).tolist()
                sampling = replace(random_request(VOCAB, rng), logprobs=None, logits_processors={})
                made, changes = bind(worker, row, prompt, sampling)
                bound.append(made)
                tables += changes
        asked = rng.choice([1, 1, 1, 7, 40], len(rows))
        yield RunStep(number, pack_ints(rows), pack_ints(asked), tuple(bound), tables)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2-window"])
def test_whole_steps_give_what_single_parts_give(family: str, tmp_path: Path) -> None:
    folder = save_folder(tiny(family), tmp_path / "model")
    for seed in range(6):
        whole, parts = (worker_of(load_native(folder, {"max_model_len": 96}), is_whole) for is_whole in (True, False))
        num_new = 0
        for step in random_steps(whole, seed):
            done, expected = whole.execute(step), parts.execute(step)
            assert done.error is None
            assert replace(done, started=0.0, ended=0.0) == replace(expected, started=0.0, ended=0.0)
            for column in ("token_ids", "num_ids", "num_computed", "tables"):
                np.testing.assert_array_equal(getattr(whole.state, column), getattr(parts.state, column))
            num_new += int(ints(done.num_new).sum())
        assert num_new > 20
        whole.close()
        parts.close()


def test_a_row_whose_logits_are_not_numbers_fails_alone(tmp_path: Path) -> None:
    import torch

    source = tiny_llama()
    with torch.no_grad():
        source.model.embed_tokens.weight[255] = float("nan")
    worker = worker_of(load_native(save_folder(source, tmp_path / "model")), is_whole=True)
    (sound, sound_tables), (bad, bad_tables) = bind(worker, 0, [1, 2, 3], GREEDY), bind(worker, 3, [255] * 4, GREEDY)
    done = worker.execute(RunStep(1, pack_ints([3, 0]), pack_ints([4, 3]), (sound, bad), sound_tables + bad_tables))
    assert (ints(done.num_new).tolist(), len(ints(done.token_ids))) == ([0, 1], 1)
    ((row, error),) = [(failure.row, failure.error.message) for failure in done.failed]
    assert row == 3
    assert "position 3: the model's logits hold NaN" in error
    done = worker.execute(RunStep(2, pack_ints([3, 0]), pack_ints([1, 1])))  # it has nothing to compute any more
    assert (ints(done.num_new).tolist(), done.failed, done.error) == ([0, 1], (), None)
    worker.close()


def test_a_step_that_the_library_refuses_fails_and_the_next_reset_heals(tmp_path: Path) -> None:
    worker = worker_of(load_native(save_folder(tiny_llama(), tmp_path / "model")), is_whole=True)
    request, tables = bind(worker, 0, [1, 2, 3], GREEDY)
    done = worker.execute(RunStep(1, pack_ints([0]), pack_ints([3]), (request,)))  # without blocks
    assert done.error is not None
    assert "a token has no block" in done.error.message
    done = worker.execute(RunStep(2, pack_ints([0]), pack_ints([3]), (request,), tables, reset=True))
    assert (ints(done.num_new).tolist(), done.error) == ([1], None)
    worker.close()


def test_rows_that_ask_for_more_than_tokens_go_through_python(tmp_path: Path) -> None:
    model = load_native(save_folder(tiny_llama(), tmp_path / "model"))
    worker = worker_of(model, is_whole=True)
    plain, plain_tables = bind(worker, 0, [1, 2, 3], GREEDY)
    told, told_tables = bind(worker, 1, [4, 5], replace(GREEDY, logprobs=2, prompt_logprobs=1))
    rows, asked = pack_ints([0, 1]), pack_ints([3, 2])
    done = worker.execute(RunStep(1, rows, asked, (plain, told), plain_tables + told_tables))
    assert ints(done.num_new).tolist() == [1, 1]
    assert done.logprobs is not None
    assert done.prompt_logprobs is not None
    assert ints(done.logprobs.rows).tolist() == [1]
    done = worker.execute(RunStep(2, pack_ints([0]), pack_ints([1])))
    assert (ints(done.num_new).tolist(), done.logprobs) == ([1], None)
    worker.close()

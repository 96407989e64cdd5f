"""The torch runner's model as the worker sees it: facts, limits, bfloat16, errors."""

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import Blocks, context_of, load_torch, log_softmax, run, take
from tiny_llama import reference_logits

from headrace.core.errors import ConfigError
from headrace.core.messages import KVGroup
from headrace.runners.torch_cpu.model import TorchModel

PROMPT = np.random.default_rng(2).integers(0, 256, 60).tolist()
BYTES_PER_BLOCK = 2 * 2 * 2 * 16 * 4 * 16  # K and V, layers, KV heads, numbers, bytes, tokens


def test_loading_tells_the_facts(llama_folder: Path) -> None:
    ready = TorchModel(context_of(llama_folder)).load()
    assert ready.vocab_size == 256
    assert ready.max_model_len == 512
    assert ready.groups == (KVGroup(num_layers=2, num_blocks=256),)
    assert ready.bytes_per_block == BYTES_PER_BLOCK
    assert ready.dtype == "float32"
    assert set(ready.timings) == {"import", "read", "dequantise", "build"}


@pytest.mark.parametrize(("memory", "num_blocks"), [("1MiB", 2**20 // BYTES_PER_BLOCK - 1), ("20kB", 1)])
def test_memory_for_kv_becomes_blocks(memory: str, num_blocks: int, llama_folder: Path) -> None:
    ready = TorchModel(context_of(llama_folder, num_kv_blocks=None, kv_cache_memory=memory)).load()
    assert ready.groups[0].num_blocks == num_blocks


def test_without_a_limit_there_are_blocks_for_all_requests_at_full_length(llama_folder: Path) -> None:
    ready = TorchModel(context_of(llama_folder, num_kv_blocks=None, max_num_seqs=3, max_model_len=100)).load()
    assert ready.groups[0].num_blocks == 3 * 7


def test_memory_for_less_than_one_block_is_a_config_error(llama_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_memory"):
        TorchModel(context_of(llama_folder, num_kv_blocks=None, kv_cache_memory="8kB")).load()


def test_the_log_tells_what_the_pool_holds(llama_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace"):
        load_torch(llama_folder, num_kv_blocks=48, max_model_len=256)
    assert "48 blocks hold 768 tokens: 3.0 requests of 256 tokens" in caplog.text


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_is_the_configured_one(threads: int, llama_folder: Path) -> None:
    load_torch(llama_folder, threads=threads)
    assert torch.get_num_threads() == threads


def test_log_probabilities_in_bfloat16_are_within_the_stated_tolerance(llama: Any, llama_folder: Path) -> None:
    model = load_torch(llama_folder, dtype="bfloat16")
    (found,) = run(model, [(Blocks(8).row(PROMPT), len(PROMPT))])
    assert found.dtype == np.float32
    expected = log_softmax(reference_logits(llama, PROMPT))
    distances = abs(log_softmax(found) - expected)
    assert distances.mean() < 0.1
    assert distances[range(len(PROMPT)), expected.argmax(axis=-1)].max() < 0.25


def test_bfloat16_is_as_close_to_float32_as_in_transformers(llama: Any, llama_folder: Path) -> None:
    (found,) = run(load_torch(llama_folder, dtype="bfloat16"), [(Blocks(8).row(PROMPT), len(PROMPT))])
    expected = reference_logits(llama, PROMPT)
    theirs = reference_logits(copy.deepcopy(llama).to(torch.bfloat16), PROMPT)
    assert abs(found - expected).mean() < 1.2 * abs(theirs - expected).mean()


def test_K_and_V_take_half_the_memory_in_bfloat16(llama_folder: Path) -> None:
    assert TorchModel(context_of(llama_folder, dtype="bfloat16")).load().bytes_per_block == BYTES_PER_BLOCK // 2


def test_logits_are_the_caller_s_own(llama_folder: Path) -> None:
    model = load_torch(llama_folder)
    model.forward(take([(Blocks(8).row(PROMPT), len(PROMPT))]))
    indices = np.array([0, 59], dtype=np.int32)
    first = model.logits(indices)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(model.logits(indices), kept)
    assert kept.shape == (2, 256)


def test_a_token_without_a_block_is_an_error(llama_folder: Path) -> None:
    model, row = load_torch(llama_folder), Blocks(8).row(PROMPT)
    row.table[1] = 0
    with pytest.raises(IndexError, match="no block"):
        model.forward(take([(row, len(PROMPT))]))


def test_an_id_beyond_the_vocabulary_is_an_error(llama_folder: Path) -> None:
    with pytest.raises(IndexError):
        run(load_torch(llama_folder), [(Blocks(8).row([256]), 1)])


def test_a_model_is_needed() -> None:
    with pytest.raises(ConfigError, match="name a model"):
        TorchModel(context_of(None)).load()


def test_closing_twice_is_fine(llama_folder: Path) -> None:
    model = load_torch(llama_folder)
    model.close()
    model.close()
    TorchModel(context_of(llama_folder)).close()

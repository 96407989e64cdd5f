"""The fast forward pass: rows of any mix give what they give alone, but for rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import BLOCK_SIZE, Blocks, load_torch, run, run_chunks
from safetensors.torch import load_file, save_file
from tiny_llama import reference_logits

BAD_TOKEN = 255
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, BAD_TOKEN, length).tolist() for length in (1, 5, 16, 17, 33, 64, 130, 300)]


@pytest.fixture(scope="module")
def expected(llama: Any) -> list[np.ndarray]:
    return [reference_logits(llama, prompt) for prompt in PROMPTS]


def test_prompts_together_give_what_transformers_gives_alone(llama_folder: Path, expected: list[np.ndarray]) -> None:
    blocks = Blocks(128)
    found = run(load_torch(llama_folder), [(blocks.row(prompt), len(prompt)) for prompt in PROMPTS])
    for logits, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(logits, wanted, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_a_prompt_in_chunks_gives_what_transformers_gives(
    chunk: int, llama_folder: Path, expected: list[np.ndarray]
) -> None:
    model, blocks = load_torch(llama_folder), Blocks(128)
    for prompt, wanted in zip(PROMPTS, expected, strict=True):
        np.testing.assert_allclose(run_chunks(model, blocks.row(prompt), chunk), wanted, atol=1e-4)


def test_decodes_and_chunks_of_prompts_mix_in_one_batch(llama_folder: Path, expected: list[np.ndarray]) -> None:
    """Every step takes one token of the even rows and up to 50 of the odd ones."""
    model, blocks = load_torch(llama_folder), Blocks(128)
    rows = [blocks.row(prompt) for prompt in PROMPTS]
    found: list[list[np.ndarray]] = [[] for _ in rows]
    while any(row.computed < len(row.token_ids) for row in rows):
        left = [(index, len(row.token_ids) - row.computed) for index, row in enumerate(rows)]
        parts = [(index, 1 if index % 2 == 0 else min(50, count)) for index, count in left if count]
        outputs = run(model, [(rows[index], count) for index, count in parts])
        for (index, _), logits in zip(parts, outputs, strict=True):
            found[index].append(logits)
    for chunks, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.concatenate(chunks), wanted, atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_C09_equal_prompts_of_one_step_may_share_blocks(
    deterministic: bool, llama_folder: Path, expected: list[np.ndarray]
) -> None:
    """The second row reads blocks that the first one writes in the same step."""
    model, blocks = load_torch(llama_folder, deterministic=deterministic), Blocks(128)
    prompt, wanted = PROMPTS[5], expected[5]
    first, second = blocks.row(prompt), blocks.row(prompt)
    second.table[:3] = first.table[:3]
    second.computed = 48
    logits, more = run(model, [(first, 64), (second, 16)])
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
    np.testing.assert_allclose(more, wanted[48:], atol=1e-4)


@pytest.fixture(scope="module")
def overflowing_folder(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, but for one token whose embedding, and so all of its K/V, is NaN."""
    folder = tmp_path_factory.mktemp("overflowing")
    (folder / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    tensors = load_file(llama_folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][BAD_TOKEN] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_an_earlier_request_left_in_a_block_never_matters(
    deterministic: bool, overflowing_folder: Path, expected: list[np.ndarray]
) -> None:
    """K/V of a request whose numbers ran over may still lie in the unused end of a block."""
    model, bad = load_torch(overflowing_folder, deterministic=deterministic, num_kv_blocks=48), Blocks(48)
    filling = 16 * BLOCK_SIZE
    found = run(model, [(bad.row([BAD_TOKEN] * filling), filling) for _ in range(3)])
    assert np.isnan(found).all()
    blocks = Blocks(48)
    rows = [blocks.row(prompt) for prompt in PROMPTS]
    run(model, [(row, len(row.token_ids) - 1) for row in rows[1:]])
    for logits, wanted in zip(run(model, [(row, 1) for row in rows]), expected, strict=True):
        np.testing.assert_allclose(logits, wanted[-1:], atol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_row_whose_numbers_run_over_spoils_no_other(
    deterministic: bool, overflowing_folder: Path, expected: list[np.ndarray]
) -> None:
    model, blocks = load_torch(overflowing_folder, deterministic=deterministic), Blocks(128)
    rows = [blocks.row([BAD_TOKEN]), *(blocks.row(prompt) for prompt in PROMPTS), blocks.row([3, BAD_TOKEN])]
    for _ in range(2):
        parts = [(row, min(100, len(row.token_ids) - row.computed)) for row in rows]
        found = run(model, [part for part in parts if part[1]])
    np.testing.assert_allclose(found[-1][-1], expected[-1][199], atol=1e-4)

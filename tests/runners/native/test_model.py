"""The native model as the worker sees it: logits against transformers, rows that don't depend on others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, context_of, run, run_chunks, take
from native_models import load_native
from tiny_llama import reference_logits, save_folder, tiny_llama

from headrace.core.messages import KVGroup
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions

PROMPT = np.random.default_rng(1).integers(0, 256, 70).tolist()


def whole(model: Any, token_ids: list[int] = PROMPT) -> np.ndarray:
    return run(model, [(Blocks(64).row(token_ids), len(token_ids))])[0]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (9, 3, 32), (4, 4, 16), (7, 1, 24), (8, 1, 8)])
def test_logits_of_llama_are_those_of_transformers(heads: int, kv_heads: int, head_dim: int, tmp_path: Path) -> None:
    source = tiny_llama(heads, kv_heads, head_dim)
    found = whole(load_native(save_folder(source, tmp_path / "model")))
    np.testing.assert_allclose(found, reference_logits(source, PROMPT), atol=1e-4)


def test_logits_of_a_gguf_file_are_those_of_its_source(smol_llama: Any, smol_gguf: Path) -> None:
    np.testing.assert_allclose(whole(load_native(smol_gguf)), reference_logits(smol_llama, PROMPT), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"kv_dtype": "float16"}, {"weights": "float16"}])
@pytest.mark.parametrize("block_size", [16, 5, 8, 32])
def test_a_row_is_bitwise_the_same_alone_chunked_and_among_others(
    block_size: int, options: dict[str, str], smol_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batches.BLOCK_SIZE", block_size)
    model = load_native(smol_folder, {"block_size": block_size}, **options)
    alone = whole(model)
    for chunk in (1, 7, 64):
        np.testing.assert_array_equal(run_chunks(model, Blocks(200).row(PROMPT), chunk), alone)
    blocks, rng = Blocks(200), np.random.default_rng(5)
    row, others = blocks.row(PROMPT), [blocks.row(rng.integers(0, 256, 40).tolist()) for _ in range(5)]
    parts = []
    for count in (33, 1, 1, 20, 15):
        mates = [(other, 1 + i) for i, other in enumerate(others)]
        parts.append(run(model, [*mates[:2], (row, count), *mates[2:]])[2])
    np.testing.assert_array_equal(np.concatenate(parts), alone)


def test_rows_that_sample_get_their_logits_within_the_step(smol_folder: Path) -> None:
    model, blocks = load_native(smol_folder), Blocks(64)
    batch = take([(blocks.row(PROMPT), 30), (blocks.row(PROMPT), 70)])
    model.forward(batch)
    sampling = model.logits(np.array([29, 99], dtype=np.int32)).copy()
    everything = model.logits(np.arange(100, dtype=np.int32))
    np.testing.assert_array_equal(everything[[29, 99]], sampling)


def test_the_facts_are_told(smol_folder: Path) -> None:
    ready = NativeModel(context_of(smol_folder), NativeOptions()).load()
    assert (ready.vocab_size, ready.max_model_len) == (256, 512)
    assert ready.groups == (KVGroup(num_layers=2, num_blocks=256),)
    assert ready.bytes_per_block == 2 * 2 * 3 * 32 * 4 * 16
    assert set(ready.timings) == {"library", "read", "pack"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"token_ids": [0, 256]}, "vocabulary"),
        ({"token_ids": [0, -1]}, "vocabulary"),
        ({"positions": [0, 64]}, "block table"),
        ({"positions": [0, -1]}, "block table"),
        ({"starts": [0, 3]}, "starts"),
        ({"tables": [[1, 2, 3, 257]]}, "block id"),
        ({"tables": [[1, 2, 3, -1]]}, "block id"),
        ({"slots": [16, 4112]}, "no block"),
        ({"slots": [15, 17]}, "no block"),
    ],
)
def test_a_step_that_points_outside_is_refused_before_anything_runs(
    changed: dict[str, Any], problem: str, smol_folder: Path
) -> None:
    from msgspec.structs import replace

    batch = take([(Blocks(64).row(PROMPT[:60]), 2)])
    wrong: dict[str, Any] = {key: np.array(value, dtype=np.int32) for key, value in changed.items()}
    if "tables" in wrong:
        wrong["tables"] = [wrong["tables"]]
    if "slots" in wrong:
        wrong["slots"] = [wrong["slots"].astype(np.int64)]
    model = load_native(smol_folder)
    with pytest.raises(RuntimeError, match=problem):
        model.forward(replace(batch, **wrong))


def test_k_and_v_of_an_earlier_request_that_are_not_finite_do_not_spread(tmp_path: Path) -> None:
    import torch

    source = tiny_llama()
    with torch.no_grad():
        source.model.embed_tokens.weight[255] = float("nan")
    model = load_native(save_folder(source, tmp_path / "model"))
    prompt = [token_id % 255 for token_id in PROMPT]
    sound = whole(model, prompt)
    assert np.isnan(whole(model, [255] * 80)).all()
    np.testing.assert_array_equal(whole(model, prompt), sound)


def test_close_comes_twice(smol_folder: Path) -> None:
    model = load_native(smol_folder)
    model.close()
    model.close()

"""Every family, head size, window and way of stretching a context against transformers, on tiny random models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, run, run_chunks
from native_models import load_native
from tiny_families import ROPES, save_family_gguf, tiny
from tiny_llama import reference_logits, save_folder, tiny_llama

from headrace.core.errors import UnsupportedModel

PROMPT = np.random.default_rng(4).integers(0, 256, 90).tolist()
FAMILIES = ["llama", "mistral", "qwen2", "qwen2-window", "qwen3", "gemma3"]
STRETCHED = {kind: {"rope_parameters": {**rope, "rope_theta": 1e4}} for kind, rope in ROPES.items()}
GEMMA_STRETCHED = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
HEADS = [(3, 1, 64), (2, 2, 96), (5, 1, 128), (2, 1, 256)]


def assert_like(source: Any, path: Path) -> None:
    """Compare a whole prompt with transformers, and its chunks with the whole, bit by bit."""
    model, expected = load_native(path), reference_logits(source, PROMPT)
    (found,) = run(model, [(Blocks(64).row(PROMPT), len(PROMPT))])
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_array_equal(run_chunks(model, Blocks(64).row(PROMPT), 13), found)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_folder_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    source = tiny(name)
    assert_like(source, save_folder(source, tmp_path / "model"))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "qwen2-window"])
def test_logits_of_a_gguf_file_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    source = tiny(name)
    assert_like(source, save_family_gguf(source, tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("name", "changed"), [*(("llama", rope) for rope in STRETCHED.values()), ("gemma3", GEMMA_STRETCHED)]
)
def test_contexts_are_stretched_as_transformers_does(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    source = tiny(name, **changed)
    assert_like(source, save_folder(source, tmp_path / "model"))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), HEADS)
def test_heads_of_any_size_are_computed(heads: int, kv_heads: int, head_dim: int, tmp_path: Path) -> None:
    source = tiny_llama(heads, kv_heads, head_dim, initializer_range=0.05)
    assert_like(source, save_folder(source, tmp_path / "model"))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
)
def test_what_is_not_built_in_is_refused(changed: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = save_folder(tiny("llama", **changed), tmp_path / "model")
    with pytest.raises(UnsupportedModel, match=problem):
        load_native(path)


def test_a_head_size_that_is_no_whole_vector_names_the_other_runner(tmp_path: Path) -> None:
    path = save_folder(tiny_llama(4, 2, 12), tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="runner torch"):
        load_native(path)

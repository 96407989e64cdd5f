"""Models with made-up weights: from a config alone, the same each time, in both runners."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, load_torch, log_softmax, run_chunks
from native_models import load_native
from tiny_families import FAMILIES, save_family_gguf, tiny

from headrace import LLM, SamplingParams
from headrace.core.errors import ModelNotFound, UnsupportedModel
from headrace.runners.loading.dummy import RANGE, dummy_values

PROMPT = np.random.default_rng(1).integers(0, 256, 40).tolist()
NATIVE = [name for name in FAMILIES if name != "gpt2"]


def config_alone(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits_of(path: Path, load: Any = load_torch, **options: Any) -> np.ndarray:
    return run_chunks(load(path, **options), Blocks(16).row(PROMPT), 40)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return config_alone(tiny(request.param).config.to_dict(), tmp_path / "model")


def test_a_config_alone_makes_the_same_model_each_time(folder: Path) -> None:
    logits = logits_of(folder, load_format="dummy")
    assert np.isfinite(logits).all()
    assert len(set(logits.argmax(-1))) > 1
    assert np.array_equal(logits, logits_of(folder, load_format="dummy"))


@pytest.mark.parametrize("name", NATIVE)
def test_both_runners_make_up_the_same(name: str, tmp_path: Path) -> None:
    folder = config_alone(tiny(name).config.to_dict(), tmp_path / "model")
    found = logits_of(folder, load_native, config={"load_format": "dummy"})
    np.testing.assert_allclose(log_softmax(found), log_softmax(logits_of(folder, load_format="dummy")), atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_gguf_file_makes_what_its_folder_makes(name: str, tmp_path: Path) -> None:
    source = tiny(name)
    file = save_family_gguf(source, tmp_path / "model.gguf")
    folder = config_alone(source.config.to_dict(), tmp_path / "model")
    expected = log_softmax(logits_of(folder, load_format="dummy"))
    np.testing.assert_allclose(log_softmax(logits_of(file, load_format="dummy")), expected, atol=1e-5)
    native = logits_of(file, load_native, config={"load_format": "dummy"})
    np.testing.assert_allclose(log_softmax(native), expected, atol=1e-4)


def test_architectures_of_transformers_are_made_up_too(tmp_path: Path) -> None:
    import transformers

    config = transformers.GraniteConfig(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4
    )
    folder = config_alone(config.to_dict(), tmp_path / "model")
    logits = logits_of(folder, load_format="dummy")
    assert np.isfinite(logits).all()
    assert np.array_equal(logits, logits_of(folder, load_format="dummy"))


def test_numbers_follow_from_name_and_shape_alone() -> None:
    values = dummy_values("model.norm.bias", (1000,))
    assert np.array_equal(values, dummy_values("model.norm.bias", (1000,)))
    assert not np.array_equal(values, dummy_values("model.norm.other", (1000,)))
    assert np.abs(values).max() <= RANGE + 1e-6
    assert np.abs(dummy_values("model.norm.weight", (1000,)) - 1).max() <= RANGE + 1e-6


def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    config = tiny("llama").config.to_dict() | {"vocab_size": 1 << 24, "hidden_size": 1 << 20}
    with pytest.raises(UnsupportedModel, match=r"weights in float32 are \d+\.\d GiB, this machine has"):
        load_torch(config_alone(config, tmp_path / "model"), load_format="dummy")


def test_without_dummy_the_weights_are_missed(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"neither model\.safetensors nor"):
        load_torch(config_alone(tiny("llama").config.to_dict(), tmp_path / "model"))


def test_an_engine_runs_on_a_config_alone(tmp_path: Path) -> None:
    folder = config_alone(tiny("llama").config.to_dict(), tmp_path / "model")
    params = SamplingParams(temperature=0, max_tokens=8)
    with pytest.raises(UnsupportedModel, match="neither tokenizer.json nor .* tokenizer symbols needs none"):
        LLM(folder, load_format="dummy", num_kv_blocks=16).close()
    with LLM(folder, load_format="dummy", tokenizer="symbols", num_kv_blocks=16, threads=1) as llm:
        results = [llm.generate("abc", params, use_tqdm=False)[0] for _ in range(2)]
    assert results[0].token_ids == results[1].token_ids
    assert len(results[0].text) == len(results[0].token_ids) == 8

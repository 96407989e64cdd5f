"""Models that transformers runs over our paged K/V."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from batches import Blocks, load_torch, log_softmax, run, run_chunks
from tiny_llama import reference_logits, save_folder

from headrace.core.errors import ConfigError, UnsupportedModel

PROMPT = np.random.default_rng(1).integers(0, 256, 70).tolist()
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def saved(config: transformers.PreTrainedConfig, path: Path) -> tuple[Any, Path]:
    torch.manual_seed(3)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return model, save_folder(model, path)


@pytest.fixture(scope="module")
def granite(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Llama with four multipliers, one of them behind the head."""
    scales = {"logits_scaling": 2.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 3}
    return saved(transformers.GraniteConfig(**SIZES, **scales), tmp_path_factory.mktemp("models") / "granite")


@pytest.mark.parametrize("chunk", [70, 7])
def test_logits_are_those_of_transformers(chunk: int, granite: tuple[Any, Path]) -> None:
    source, folder = granite
    found, expected = run_chunks(load_torch(folder), Blocks(16).row(PROMPT), chunk), reference_logits(source, PROMPT)
    np.testing.assert_allclose(log_softmax(found), log_softmax(expected), atol=1e-4)
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_decodes_among_others_are_those_of_transformers(granite: tuple[Any, Path]) -> None:
    source, folder = granite
    model, blocks, prompts = load_torch(folder), Blocks(64), [PROMPT, PROMPT[5:20], PROMPT[::-1]]
    rows = [blocks.row(prompt) for prompt in prompts]
    run(model, [(row, len(row.token_ids) - 1) for row in rows])
    for prompt, logits in zip(prompts, run(model, [(row, 1) for row in rows]), strict=True):
        expected = reference_logits(source, prompt)[-1:]
        np.testing.assert_allclose(log_softmax(logits), log_softmax(expected), atol=1e-4)


def test_windows_are_those_of_transformers(tmp_path: Path) -> None:
    config = transformers.Starcoder2Config(**SIZES, sliding_window=24)
    source, folder = saved(config, tmp_path / "model")
    found = run_chunks(load_torch(folder), Blocks(16).row(PROMPT), 40)
    np.testing.assert_allclose(log_softmax(found), log_softmax(reference_logits(source, PROMPT)), atol=1e-4)


def test_deterministic_is_refused(granite: tuple[Any, Path]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.deterministic is true, but this architecture isn't built in"):
        load_torch(granite[1], deterministic=True)


def test_an_architecture_without_keys_and_values_is_refused_by_name(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=256, hidden_size=32, num_hidden_layers=1)
    _, folder = saved(config, tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="architecture 'mamba' isn't built in, and its cache isn't plain"):
        load_torch(folder)


def test_keys_and_values_of_other_sizes_are_refused(tmp_path: Path) -> None:
    """Multi-head latent attention."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    config = transformers.DeepseekV3Config(**{**SIZES, **ranks, "num_key_value_heads": 4, "first_k_dense_replace": 2})
    _, folder = saved(config, tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="architecture 'deepseek_v3' isn't built in, and its cache"):
        load_torch(folder)

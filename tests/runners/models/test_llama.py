"""The Llama family against transformers, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, load_torch, run, run_chunks
from tiny_llama import gguf_fields, gguf_tensors, reference_logits, save_folder, save_gguf, tiny_llama, write_gguf

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.models.decoder import parameters
from headrace.runners.models.llama import read_folder

PROMPT = np.random.default_rng(1).integers(0, 256, 70).tolist()
FOLDER = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (9, 3, 32), (4, 4, 16), (4, 1, 24)])
def test_logits_of_a_folder_are_those_of_transformers(heads: int, kv_heads: int, head_dim: int, tmp_path: Path) -> None:
    source = tiny_llama(heads, kv_heads, head_dim)
    model = load_torch(save_folder(source, tmp_path / "model"))
    found = run_chunks(model, Blocks(16).row(PROMPT), len(PROMPT))
    np.testing.assert_allclose(found, reference_logits(source, PROMPT), atol=1e-4)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (9, 3, 32)])
@pytest.mark.parametrize(("quant", "tolerance"), [("F32", 1e-5), ("F16", 1e-2)])
def test_H01_logits_of_a_gguf_file_are_those_of_its_source(
    quant: str, tolerance: float, heads: int, kv_heads: int, head_dim: int, tmp_path: Path
) -> None:
    source = tiny_llama(heads, kv_heads, head_dim, initializer_range=0.05)
    model = load_torch(save_gguf(source, tmp_path / "model.gguf", quant))
    (found,) = run(model, [(Blocks(16).row(PROMPT), len(PROMPT))])
    np.testing.assert_allclose(found, reference_logits(source, PROMPT), atol=tolerance)


def test_a_head_size_of_its_own_is_read(tmp_path: Path) -> None:
    source = tiny_llama(4, 2, 24, hidden_size=64)
    folder, file = save_folder(source, tmp_path / "model"), tmp_path / "model.gguf"
    fields = {**gguf_fields(source), "llama.attention.key_length": 24}
    write_gguf(file, fields, gguf_tensors(source, "F32"))
    for path in (folder, file):
        (found,) = run(load_torch(path), [(Blocks(16).row(PROMPT), len(PROMPT))])
        np.testing.assert_allclose(found, reference_logits(source, PROMPT), atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "rope type 'longrope' isn't built in"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' isn't built in"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is"),
    ],
)
def test_a_folder_that_asks_for_what_is_not_built_in_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedModel, match=problem):
        read_folder("config.json", {**FOLDER, **changed})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size|head_dim"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "4 heads of 16 numbers with 3 KV heads"),
        ({"head_dim": 15}, "4 heads of 15 numbers"),
        ({"max_position_embeddings": 2**40}, "context_length"),
        ({"rms_norm_eps": 0}, "rms_eps"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "big"}}, "rope_theta"),
    ],
)
def test_a_folder_with_impossible_sizes_is_damaged(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileDamaged, match=problem):
        read_folder("config.json", {**FOLDER, **changed})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ModelFileDamaged, match=r"config\.json: .*hidden_size"):
        read_folder("config.json", {key: value for key, value in FOLDER.items() if key != "hidden_size"})


def test_both_places_of_the_rotary_base_are_read() -> None:
    old = read_folder("config.json", {**FOLDER, "rope_theta": 5e5})
    new = read_folder("config.json", {**FOLDER, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert old == new
    assert old.ropes[0].rope_theta == 5e5


@pytest.mark.parametrize(
    ("changed", "error", "problem"),
    [
        ({"llama.expert_count": 8}, UnsupportedModel, "llama.expert_count is 8"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModel, "rope type 'longrope' isn't built in"),
        ({"llama.rope.dimension_count": 8}, UnsupportedModel, "llama.rope.dimension_count is 8, only 16"),
        ({"llama.block_count": 0}, ModelFileDamaged, "num_layers"),
        ({"llama.block_count": 2**31}, ModelFileDamaged, "num_layers"),
        ({"llama.attention.head_count": 0}, ModelFileDamaged, "num_heads|dimension_count"),
        ({"llama.attention.head_count_kv": 0}, ModelFileDamaged, "num_kv_heads"),
        ({"llama.attention.head_count_kv": 3}, ModelFileDamaged, "with 3 KV heads"),
        ({"llama.context_length": 0}, ModelFileDamaged, "context_length"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, ModelFileDamaged, "rms_eps"),
        ({"llama.embedding_length": "big"}, ModelFileDamaged, "llama.embedding_length is 'big'"),
    ],
)
def test_a_gguf_file_with_wrong_metadata_is_refused(
    changed: dict[str, Any], error: type[Exception], problem: str, llama: Any, tmp_path: Path
) -> None:
    fields = {**gguf_fields(llama), **changed}
    if changed.get("llama.attention.head_count") == 0:
        fields.pop("llama.rope.dimension_count")
    path = write_gguf(tmp_path / "model.gguf", fields, gguf_tensors(llama, "F32"))
    with pytest.raises(error, match=problem):
        load_torch(path)


def test_every_parameter_of_transformers_is_listed_with_its_shape(llama: Any, llama_folder: Path) -> None:
    config = read_folder("config.json", json.loads((llama_folder / "config.json").read_text()))
    found = {parameter.name: parameter.shape for parameter in parameters(config)}
    assert found == {name: tuple(weight.shape) for name, weight in llama.state_dict().items()}


def test_a_tied_head_is_the_embedding() -> None:
    config = read_folder("config.json", {**FOLDER, "tie_word_embeddings": True})
    tied = {parameter.name: parameter.tied_to for parameter in parameters(config) if parameter.tied_to}
    assert tied == {"lm_head.weight": "model.embed_tokens.weight"}

"""Every family against transformers, from folders and from GGUF files, batched and deterministic."""

from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from batches import Blocks, load_torch, log_softmax, run, run_chunks
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES, ROPES, save_family_gguf, tiny
from tiny_llama import reference_logits, save_folder

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.models import gemma3, gpt2, qwen2, qwen3
from headrace.runners.models.registry import find_family
from headrace.runners.models.rope import Rope

PROMPT = np.random.default_rng(1).integers(0, 256, 70).tolist()
MATES = [np.random.default_rng(2).integers(0, 256, length).tolist() for length in (3, 41, 90)]
WITH_GGUF = [name for name in FAMILIES if name != "qwen2-window"]
"""GGUF files can't say which layers have the window."""
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}


def assert_equal(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(log_softmax(found), log_softmax(expected), atol=1e-4)
    assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.fixture(params=FAMILIES, scope="module")
def source(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


@pytest.fixture(scope="module")
def folder(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(source, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def expected(source: Any) -> np.ndarray:
    return reference_logits(source, PROMPT)


@pytest.mark.parametrize(("chunk", "deterministic"), [(70, False), (7, False), (1, False), (9, True)])
def test_logits_of_a_folder_are_those_of_transformers(
    chunk: int, deterministic: bool, folder: Path, expected: np.ndarray
) -> None:
    model = load_torch(folder, deterministic=deterministic)
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), chunk), expected)


@pytest.mark.parametrize("name", WITH_GGUF)
def test_logits_of_a_gguf_file_are_those_of_its_source(name: str, tmp_path: Path) -> None:
    source = tiny(name)
    model = load_torch(save_family_gguf(source, tmp_path / "model.gguf"))
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), 40), reference_logits(source, PROMPT))


def test_decodes_among_others_are_those_of_transformers(folder: Path, source: Any) -> None:
    blocks, prompts = Blocks(64), [PROMPT, *MATES]
    model, rows = load_torch(folder), [blocks.row(prompt) for prompt in prompts]
    run(model, [(row, len(row.token_ids) - 1) for row in rows])
    for prompt, logits in zip(prompts, run(model, [(row, 1) for row in rows]), strict=True):
        assert_equal(logits, reference_logits(source, prompt)[-1:])


def test_bits_of_a_row_do_not_depend_on_its_batch(folder: Path) -> None:
    model = load_torch(folder, deterministic=True)
    alone = run_chunks(model, Blocks(16).row(PROMPT), 13)
    blocks = Blocks(64)
    rows = [blocks.row(prompt) for prompt in (*MATES, PROMPT)]
    assert np.array_equal(run(model, [(row, len(row.token_ids)) for row in rows])[-1], alone)


def test_every_parameter_of_transformers_is_listed(source: Any, folder: Path) -> None:
    family = find_family("", source.config.model_type, families.FAMILIES)
    listed = {parameter.name for parameter in family.parameters(family.read_folder("", source.config.to_dict()))}
    assert listed == set(source.state_dict())


@pytest.mark.parametrize("rope", ROPES)
def test_stretched_contexts_are_those_of_transformers(rope: str, tmp_path: Path) -> None:
    source = tiny("llama", rope_parameters={"rope_theta": 10000.0, **ROPES[rope]})
    model = load_torch(save_folder(source, tmp_path / "model"))
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), 70), reference_logits(source, PROMPT))


def test_divisors_of_llama_3_s_gguf_files_stretch_the_context(tmp_path: Path) -> None:
    """The converter writes what frequencies are divided by, instead of the parameters."""
    source = tiny("llama", rope_parameters={"rope_theta": 10000.0, **ROPES["llama3"]})
    divisors = Rope(10000.0).frequencies(16) / source.model.rotary_emb.inv_freq.numpy()
    model = load_torch(save_family_gguf(source, tmp_path / "model.gguf", divisors=divisors))
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), 70), reference_logits(source, PROMPT))


@pytest.mark.parametrize("rope", ["linear", "yarn"])
def test_stretched_contexts_of_gguf_files_are_those_of_transformers(rope: str, tmp_path: Path) -> None:
    source = tiny("qwen2", rope_parameters={"rope_theta": 10000.0, **ROPES[rope]})
    scaling = {"qwen2.rope.scaling.type": rope, "qwen2.rope.scaling.factor": 4.0}
    scaling["qwen2.rope.scaling.original_context_length"] = 64
    model = load_torch(save_family_gguf(source, tmp_path / "model.gguf", scaling))
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), 70), reference_logits(source, PROMPT))


def test_only_layers_that_see_everything_have_gemma_s_stretched_context(tmp_path: Path) -> None:
    ropes = {"full_attention": {"rope_theta": 1e6, **ROPES["linear"]}}
    ropes["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    source = tiny("gemma3", rope_parameters=ropes)
    model = load_torch(save_folder(source, tmp_path / "model"))
    assert_equal(run_chunks(model, Blocks(16).row(PROMPT), 70), reference_logits(source, PROMPT))


def test_gpt2_folders_without_the_prefix_are_read(tmp_path: Path) -> None:
    source = tiny("gpt2")
    folder = save_folder(source, tmp_path / "model")
    tensors = {
        name.removeprefix("transformer."): each for name, each in load_file(folder / "model.safetensors").items()
    }
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 8, 8)}, folder / "model.safetensors")
    assert_equal(run_chunks(load_torch(folder), Blocks(16).row(PROMPT), 70), reference_logits(source, PROMPT))


def test_older_config_files_of_gemma_are_read() -> None:
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 3, "sliding_window": 8}
    config = gemma3.read_folder("", {**SIZES, "model_type": "gemma3_text", **old})
    assert config.ropes == (Rope(5e5), Rope(2e4))
    assert [layer.window for layer in config.layers] == [8, 8, None]


def test_a_window_that_qwen_does_not_use_means_nothing() -> None:
    config = qwen3.read_folder("", {**SIZES, "sliding_window": 8})
    assert {layer.window for layer in config.layers} == {None}
    assert config.head_dim == 128


@pytest.mark.parametrize(
    ("read", "changed", "problem"),
    [
        (gemma3.read_folder, {"model_type": "gemma3"}, "model_type is 'gemma3', only 'gemma3_text'"),
        (gemma3.read_folder, {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        (gemma3.read_folder, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (qwen2.read_folder, {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        (qwen3.read_folder, {"attention_bias": True}, "attention_bias is True"),
        (qwen3.read_folder, {"rope_scaling": {"type": "dynamic"}}, "rope type 'dynamic'"),
    ],
)
def test_what_is_not_built_in_is_refused(read: Any, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedModel, match=problem):
        read("config.json", {**SIZES, "model_type": "gemma3_text", **changed})


@pytest.mark.parametrize(
    ("changed", "error", "problem"),
    [
        ({"activation_function": "relu"}, UnsupportedModel, "activation_function is 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, UnsupportedModel, "scale_attn_by_inverse_layer_idx"),
        ({"n_head": 5}, ModelFileDamaged, "64 numbers can't be cut into 5 heads"),
        ({"n_layer": 10**9}, ModelFileDamaged, "num_layers"),
    ],
)
def test_gpt2_with_a_wrong_config_is_refused(changed: dict[str, Any], error: type[Exception], problem: str) -> None:
    sizes = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    with pytest.raises(error, match=problem):
        gpt2.read_folder("config.json", {**sizes, **changed})


def test_divisors_of_another_number_are_damaged(tmp_path: Path) -> None:
    path = save_family_gguf(tiny("llama"), tmp_path / "model.gguf", divisors=np.ones(9, dtype=np.float32))
    with pytest.raises(ModelFileDamaged, match=r"rope_freqs.weight is \(9,\), must be \(8,\)"):
        load_torch(path)


def test_layer_types_of_another_number_are_damaged() -> None:
    with pytest.raises(ModelFileDamaged, match="layer_types has 1 entries for 3 layers"):
        gemma3.read_folder("", {**SIZES, "model_type": "gemma3_text", "layer_types": ["full_attention"]})

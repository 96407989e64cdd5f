"""No tensor is dropped, doubled, or left uninitialised: files that don't match their architecture are refused."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import gguf_fields, gguf_tensors, save_folder, write_gguf

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.loading.load import open_source
from headrace.runners.loading.source import listed, load_parameters
from headrace.runners.models.llama import FAMILY

Tensors = dict[str, Any]


def load(path: Path) -> dict[str, torch.Tensor]:
    with closing(open_source(path)) as source:
        return load_parameters(source, FAMILY, source.config(FAMILY), torch.float32, threads=2)


def changed_gguf(model: Any, path: Path, change: Callable[[Tensors], None]) -> Path:
    tensors = gguf_tensors(model, "F32")
    change(tensors)
    return write_gguf(path / "model.gguf", gguf_fields(model), tensors)


def changed_folder(model: Any, path: Path, change: Callable[[Tensors], None]) -> Path:
    file = save_folder(model, path / "model") / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return file.parent


def checksum(weights: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].numpy().tobytes())
    return digest.hexdigest()


def test_H04_a_missing_tensor_is_named(llama: Any, tmp_path: Path) -> None:
    name = "blk.1.attn_k.weight"
    path = changed_gguf(llama, tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFileDamaged, match=rf"model\.gguf: tensors are missing: {name}"):
        load(path)


def test_H04_a_missing_tensor_of_a_folder_is_named(llama: Any, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    path = changed_folder(llama, tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelFileDamaged, match=rf"model: tensors are missing: {name}"):
        load(path)


def test_H04_an_untied_head_that_a_folder_lacks_is_missing(llama: Any, tmp_path: Path) -> None:
    path = changed_folder(llama, tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelFileDamaged, match=r"tensors are missing: lm_head\.weight"):
        load(path)


def test_H04_a_renamed_tensor_is_missing(llama: Any, tmp_path: Path) -> None:
    def rename(tensors: Tensors) -> None:
        tensors["blk.0.attn_query.weight"] = tensors.pop("blk.0.attn_q.weight")

    with pytest.raises(ModelFileDamaged, match=r"missing: blk\.0\.attn_q\.weight"):
        load(changed_gguf(llama, tmp_path, rename))


def test_H04_an_unknown_tensor_is_named(llama: Any, tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["blk.0.attn_q.bias"] = tensors["blk.0.attn_norm.weight"]
        tensors["rope_gains.weight"] = tensors["blk.0.attn_norm.weight"]

    with pytest.raises(UnsupportedModel, match=r"no use for tensors: blk\.0\.attn_q\.bias, rope_gains\.weight"):
        load(changed_gguf(llama, tmp_path, add))


def test_H04_an_unknown_tensor_of_a_folder_is_named(llama: Any, tmp_path: Path) -> None:
    path = changed_folder(llama, tmp_path, lambda tensors: tensors.update({"score.weight": torch.zeros(2, 2)}))
    with pytest.raises(UnsupportedModel, match=r"no use for tensors: score\.weight"):
        load(path)


def test_H04_a_tied_head_is_filled_from_the_embedding(smol_gguf: Path, smol_folder: Path) -> None:
    for path in (smol_gguf, smol_folder):
        weights = load(path)
        assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]


def test_H04_a_gguf_file_with_a_head_is_not_tied(llama: Any, tmp_path: Path) -> None:
    weights = load(changed_gguf(llama, tmp_path, lambda tensors: None))
    np.testing.assert_array_equal(weights["lm_head.weight"], llama.lm_head.weight.detach())


def test_H04_loading_twice_gives_equal_checksums(smol_gguf: Path, smol_folder: Path, smol_llama: Any) -> None:
    expected = checksum({name: weight.detach() for name, weight in smol_llama.state_dict().items()})
    assert {checksum(load(path)) for path in (smol_gguf, smol_gguf, smol_folder, smol_folder)} == {expected}


def test_a_tied_head_that_a_folder_repeats_is_no_error(smol_llama: Any, tmp_path: Path) -> None:
    path = changed_folder(
        smol_llama, tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(256, 288)})
    )
    assert load(path)["lm_head.weight"].abs().max() > 0


def test_tensors_that_models_compute_themselves_are_ignored(llama: Any, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert name not in load(changed_folder(llama, tmp_path, lambda tensors: tensors.update({name: torch.zeros(8)})))


def test_a_wrong_shape_is_named_with_the_right_one(llama: Any, tmp_path: Path) -> None:
    def transpose(tensors: Tensors) -> None:
        data, kind = tensors["blk.0.ffn_up.weight"]
        tensors["blk.0.ffn_up.weight"] = (np.ascontiguousarray(data.T), kind)

    problem = r"wrong shapes: blk\.0\.ffn_up\.weight is \(64, 160\), must be \(160, 64\)"
    with pytest.raises(ModelFileDamaged, match=problem):
        load(changed_gguf(llama, tmp_path, transpose))


def test_a_vector_where_a_matrix_must_be_is_a_wrong_shape(llama: Any, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    path = changed_folder(llama, tmp_path, lambda tensors: tensors.update({name: torch.zeros(160 * 64)}))
    with pytest.raises(ModelFileDamaged, match=r"is \(10240,\), must be \(160, 64\)"):
        load(path)


def test_long_lists_of_names_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"

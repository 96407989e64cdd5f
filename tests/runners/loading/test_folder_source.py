"""Hugging Face folders: one file or several, memory-mapped, and what is wrong with damaged ones."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import save_folder

from headrace.core.errors import HeadraceError, ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.runners.loading.folder_source import FolderSource
from headrace.runners.loading.source import load_parameters
from headrace.runners.models.llama import FAMILY


def load(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    with closing(FolderSource(path)) as source:
        return load_parameters(source, FAMILY, source.config(FAMILY), dtype, threads=2)


def test_shards_give_what_one_file_gives(llama: Any, llama_folder: Path, tmp_path: Path) -> None:
    sharded = save_folder(llama, tmp_path / "model", max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    single = load(llama_folder)
    found = load(sharded)
    assert found.keys() == single.keys()
    assert all(torch.equal(found[name], single[name]) for name in single)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_float_types_are_converted(
    stored: torch.dtype, dtype: torch.dtype, llama_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    tensors = {name: tensor.to(stored) for name, tensor in load_file(llama_folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    found = load(tmp_path, dtype)
    assert all(torch.equal(found[name], tensor.to(dtype)) for name, tensor in tensors.items())


def test_weights_of_the_right_type_are_the_file_s_own_memory(llama_folder: Path) -> None:
    load_twice = [load(llama_folder), load(llama_folder)]
    np.testing.assert_array_equal(*(weights["model.norm.weight"] for weights in load_twice))
    mapped = Path("/proc/self/maps")
    if mapped.is_file():
        assert str(llama_folder / "model.safetensors") in mapped.read_text()


def test_integers_are_no_weights(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    tensors = load_file(llama_folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"readable tensors are F32, F16, BF16, but model\.norm\.weight is I8"):
        load(tmp_path)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def garble_header(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"!" * 64 + content[72:])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda file: cut(file, 0), "can't be read"),
        (lambda file: cut(file, 5), "can't be read"),
        (lambda file: cut(file, 200), "can't be read"),
        (lambda file: cut(file, file.stat().st_size - 1), "can't be read"),
        (lambda file: file.write_bytes(b"\xff" * 4096), "can't be read"),
        (garble_header, "can't be read"),
    ],
)
def test_a_damaged_weight_file_is_named(
    damage: Callable[[Path], None], problem: str, llama: Any, tmp_path: Path
) -> None:
    folder = save_folder(llama, tmp_path / "model")
    damage(folder / "model.safetensors")
    with pytest.raises(ModelFileDamaged, match=rf"model\.safetensors {problem}"):
        load(folder)


def test_every_truncation_is_a_typed_error(llama: Any, tmp_path: Path) -> None:
    folder = save_folder(llama, tmp_path / "model")
    content = (folder / "model.safetensors").read_bytes()
    for size in range(0, len(content), 9973):
        (folder / "model.safetensors").write_bytes(content[:size])
        with pytest.raises(HeadraceError):
            load(folder)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({"weight_map": {"a": "../../secret.safetensors"}}, "must be a file of this folder"),
        ({"weight_map": {"a": "missing.safetensors"}}, "missing.safetensors is missing"),
        ({"weight_map": {}}, "must name a file for each tensor"),
        ({"weight_map": ["a"]}, "must name a file for each tensor"),
        ({}, "weight_map is None"),
        ([], "holds a list"),
    ],
)
def test_a_damaged_index_is_an_error(index: Any, problem: str, llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileDamaged, match=problem):
        FolderSource(tmp_path)


def test_a_tensor_in_two_files_is_an_error(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    for name in ("one", "two"):
        save_file({"a": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    places = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(places))
    with pytest.raises(ModelFileDamaged, match="tensor a is in two files"):
        FolderSource(tmp_path)


def test_a_folder_without_safetensors_says_what_is_wanted(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama_folder / "config.json").read_bytes())
    with pytest.raises(ModelNotFound, match=r"neither model\.safetensors nor"):
        FolderSource(tmp_path)


def test_a_damaged_config_is_named(llama: Any, tmp_path: Path) -> None:
    folder = save_folder(llama, tmp_path / "model")
    cut(folder / "config.json", 40)
    with pytest.raises(ModelFileDamaged, match=r"config\.json can't be read"):
        FolderSource(folder)

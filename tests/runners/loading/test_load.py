"""Loading a whole model."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import context_of
from msgspec.structs import replace
from tiny_llama import gguf_fields, gguf_tensors, save_folder, write_gguf

from headrace.core.errors import ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.runners.loading.load import LoadedModel, load_model
from headrace.runners.models.layers import ANY_ROWS


def load(path: Path, max_model_len: int | None = None) -> LoadedModel:
    ticks = itertools.count()
    context = replace(context_of(path, max_model_len=max_model_len), clock=lambda: float(next(ticks)))
    return load_model(context, torch.float32, ANY_ROWS, 1)


def test_stages_are_timed(llama_folder: Path) -> None:
    assert load(llama_folder).timings == {"read": 1.0, "dequantise": 1.0, "build": 1.0}


@pytest.mark.parametrize(("asked", "given"), [(None, 512), (100, 100), (10_000, 512)])
def test_the_longest_sequence_is_the_smaller_of_config_and_model(
    asked: int | None, given: int, llama_folder: Path
) -> None:
    assert load(llama_folder, asked).max_model_len == given


def test_an_unknown_architecture_of_a_folder_is_refused(llama: Any, tmp_path: Path) -> None:
    folder = save_folder(llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))
    with pytest.raises(UnsupportedModel, match="no plugin provides architecture 'nonesuch'; known: gemma3"):
        load(folder)


def test_an_unknown_architecture_of_a_gguf_file_is_refused(llama: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", gguf_fields(llama), gguf_tensors(llama, "F32"), architecture="rwkv7")
    with pytest.raises(UnsupportedModel, match="no plugin provides architecture 'rwkv7'"):
        load(path)


def test_a_path_without_a_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        load(tmp_path / "none.gguf")


def test_a_file_cut_anywhere_is_damaged(smol_gguf: Path, tmp_path: Path) -> None:
    content = smol_gguf.read_bytes()
    for size in range(0, len(content), 101_117):
        (tmp_path / "cut.gguf").write_bytes(content[:size])
        with pytest.raises(ModelFileDamaged, match=r"cut\.gguf"):
            load(tmp_path / "cut.gguf")

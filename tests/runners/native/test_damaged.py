"""Damaged and unfit files: typed errors that name the file, never a crash."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Blocks, context_of, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_models import load_native
from tiny_llama import gguf_fields, gguf_tensors, save_gguf, tiny_llama, write_gguf

from headrace.core.errors import HeadraceError, ModelError, ModelFileDamaged, UnsupportedModel
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions

PROMPT = np.random.default_rng(1).integers(0, 256, 40).tolist()


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"])
def test_a_quantised_file_runs_as_it_is(quant: str, tmp_path: Path) -> None:
    path = save_gguf(tiny_llama(4, 2, 16), tmp_path / "model.gguf", quant)
    parts = [
        run(load_native(path, weights=kept, kv_dtype="float32"), [(Blocks(64).row(PROMPT), len(PROMPT))])[0]
        for kept in ("as-is", "float32")
    ]
    np.testing.assert_allclose(parts[0], parts[1], atol=5e-3)


def safetensors(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 10) + b"{}", struct.pack("<Q", 3) + b"[1]"],
)
def test_a_safetensors_file_without_a_header_is_damaged(content: bytes, llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama_folder / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileDamaged, match=r"model\.safetensors"):
        load_native(tmp_path)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 65]}, "goes beyond"),
        ({"dtype": "F32", "shape": [4, 4], "data_offsets": [-4, 60]}, "goes beyond"),
        ({"dtype": "F32", "shape": [4, 4], "data_offsets": [60, 0]}, "goes beyond"),
        ({"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}, "goes beyond"),
        ({"dtype": "F32", "shape": [4, 5], "data_offsets": [0, 64]}, "has 64 bytes"),
        ({"dtype": "F32", "shape": "four", "data_offsets": [0, 64]}, "shape"),
        ({"shape": [4, 4], "data_offsets": [0, 64]}, "dtype"),
        (7, "Expected"),
    ],
)
def test_an_entry_that_points_outside_is_damaged(entry: Any, problem: str, llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama_folder / "config.json").read_text())
    safetensors(tmp_path / "model.safetensors", json.dumps({"a": entry}).encode(), bytes(64))
    with pytest.raises(ModelFileDamaged, match=problem):
        load_native(tmp_path)


def test_integers_for_weights_are_refused(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama_folder / "config.json").read_text())
    entry = {"dtype": "I64", "shape": [8], "data_offsets": [0, 64]}
    safetensors(tmp_path / "model.safetensors", json.dumps({"a": entry}).encode(), bytes(64))
    with pytest.raises(UnsupportedModel, match="I64"):
        load_native(tmp_path)


def test_a_tensor_of_another_shape_is_damaged(llama: Any, tmp_path: Path) -> None:
    tensors = gguf_tensors(llama, "F32")
    values, kind = tensors["blk.1.ffn_up.weight"]
    tensors["blk.1.ffn_up.weight"] = (np.ascontiguousarray(values[:-1]), kind)
    path = write_gguf(tmp_path / "model.gguf", gguf_fields(llama), tensors)
    with pytest.raises(ModelFileDamaged, match=r"blk\.1\.ffn_up\.weight is"):
        load_native(path)


def test_a_missing_tensor_is_named(llama: Any, tmp_path: Path) -> None:
    tensors = gguf_tensors(llama, "F32")
    del tensors["blk.0.attn_q.weight"]
    path = write_gguf(tmp_path / "model.gguf", gguf_fields(llama), tensors)
    with pytest.raises(ModelFileDamaged, match=r"missing: blk\.0\.attn_q\.weight"):
        load_native(path)


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    return save_gguf(tiny_llama(4, 2, 16, num_hidden_layers=1), path, "Q4_0").read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=20), cut=st.floats(0.9, 1)
)
def test_a_file_with_changed_bytes_is_refused_or_runs(
    changes: list[tuple[float, int]], cut: float, sound_file: bytes, tmp_path: Path
) -> None:
    damaged = bytearray(sound_file[: int(len(sound_file) * cut)] if cut < 0.95 else sound_file)
    for place, value in changes:
        damaged[int(place * (len(damaged) - 1))] = value
    path = tmp_path / "model.gguf"
    path.write_bytes(damaged)
    try:
        model = NativeModel(context_of(path), NativeOptions())
        facts = model.load()
    except HeadraceError as error:
        assert isinstance(error, ModelError)
    else:
        row = Blocks(64).row([token_id % facts.vocab_size for token_id in PROMPT])
        assert run(model, [(row, len(PROMPT))])[0].shape == (len(PROMPT), facts.vocab_size)
        model.close()

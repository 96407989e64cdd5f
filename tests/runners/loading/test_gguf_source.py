"""Tensors of GGUF files: every type equals a reference, Q and K rows come back in their order."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tiny_llama import gguf_fields, gguf_tensors, save_gguf, tiny_llama, weights_of, write_gguf

from headrace.core.errors import UnsupportedModel
from headrace.core.model_files.gguf import QUANT_TYPES, GGUFFile
from headrace.runners.loading.gguf_source import GGUFSource, dequantize_into, split_halves
from headrace.runners.models.llama import FAMILY

READABLE = [quant.name for quant in QUANT_TYPES.values()]


def read_all(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    with closing(GGUFSource(path)) as source:
        stored = [parameter for parameter in FAMILY.parameters(source.config(FAMILY)) if not parameter.tied_to]
        return {parameter.name: source.read(parameter, dtype) for parameter in stored}


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_H01_rows_of_q_and_k_come_back_in_order(quant: str, smol_llama: Any, tmp_path: Path) -> None:
    """Rows are quantised one by one, so quantising before or after moving them is the same."""
    kind = gguf.GGMLQuantizationType[quant]
    found = read_all(save_gguf(smol_llama, tmp_path / "model.gguf", quant))
    for name, weight in weights_of(smol_llama).items():
        expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind) if weight.ndim == 2 else weight
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_rows_of_quantised_bytes_move_as_a_whole() -> None:
    raw = np.repeat(np.arange(8, dtype=np.uint8), 3)
    found = split_halves(raw, num_rows=8, num_heads=2)
    assert found.tolist() == np.repeat([0, 2, 1, 3, 4, 6, 5, 7], 3).tolist()


@pytest.mark.parametrize("quant", READABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_H05_each_declared_type_equals_the_reference(quant: str, dtype: torch.dtype) -> None:
    """The tensor is larger than a piece, and no whole number of them."""
    kind = gguf.GGMLQuantizationType[quant]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows = 2**18 // block_bytes // 8 + 1
    raw = np.random.default_rng(3).integers(0, 64, (rows, 8 * block_bytes), dtype=np.uint8)  # no NaN in any scale
    out = torch.full((rows * 8 * block_size,), float("nan"), dtype=dtype)
    dequantize_into(out, raw.reshape(-1), quant)
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind).copy()).to(dtype).view(-1)
    assert torch.equal(out, expected)


def test_H05_an_unsupported_type_is_an_error_that_names_tensor_and_type(llama: Any, tmp_path: Path) -> None:
    tensors = gguf_tensors(llama, "F32")
    data, _ = tensors["blk.1.ffn_up.weight"]
    tensors["blk.1.ffn_up.weight"] = (data.astype(np.float64), gguf.GGMLQuantizationType.F64)
    path = write_gguf(tmp_path / "model.gguf", gguf_fields(llama), tensors)
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.ffn_up\.weight has ggml type 28"):
        GGUFSource(path)


def test_infinite_scales_of_a_damaged_file_are_read_without_a_warning() -> None:
    raw = np.full(4 * 34, 0x7C, dtype=np.uint8)  # halves that are NaN
    out = torch.zeros(4 * 32)
    dequantize_into(out, raw, "Q8_0")
    assert out.isnan().all()


def test_types_may_differ_from_tensor_to_tensor(tmp_path: Path) -> None:
    source = tiny_llama()
    mixed = gguf_tensors(source, "Q4_1") | {
        name: tensor for name, tensor in gguf_tensors(source, "Q8_0").items() if "ffn_down" in name
    }
    path = write_gguf(tmp_path / "model.gguf", gguf_fields(source), mixed)
    assert {info.type for info in GGUFFile(path).tensors.values()} == {"F32", "Q4_1", "Q8_0"}
    found, weights = read_all(path), weights_of(source)
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight"):
        kind = gguf.GGMLQuantizationType.Q8_0 if "down" in name else gguf.GGMLQuantizationType.Q4_1
        expected = gguf.quants.dequantize(gguf.quants.quantize(weights[name], kind), kind)
        np.testing.assert_array_equal(found[name], expected)


def test_tensors_outlive_the_file(smol_gguf: Path, smol_llama: Any) -> None:
    found = read_all(smol_gguf)
    np.testing.assert_array_equal(found["model.norm.weight"], weights_of(smol_llama)["model.norm.weight"])

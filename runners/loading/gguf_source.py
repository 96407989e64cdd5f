"""Weights from a GGUF file: each tensor dequantised in small pieces by the gguf library, Q/K rows put in our order."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.core.model_files.gguf import QUANT_TYPES, GGUFFile
from headrace.runners.loading.allocation import empty_tensor
from headrace.runners.models.contract import Family, Parameter

_PIECE_BYTES = 1 << 17
"""The library works on whole arrays: pieces of this size keep its temporaries in the CPU's cache (measured)."""
_BLOCK_BYTES = {quant.name: quant.block_bytes for quant in QUANT_TYPES.values()}


class GGUFSource:
    """An open GGUF file as a source of weights. Implements source.WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self.architecture = self._file.value("general.architecture", str)

    def config(self, family: Family) -> Any:
        """Read the family's config from the metadata."""
        return family.read_gguf(self._file)

    def name_of(self, parameter: Parameter) -> str:
        """Return the parameter's GGUF name."""
        return parameter.gguf_name

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Return the parameter's own shape."""
        return parameter.shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List all tensors; unreadable types were refused when the file was opened."""
        return {name: info.shape for name, info in self._file.tensors.items()}

    def read(self, parameter: Parameter, dtype: torch.dtype) -> Tensor:
        """Dequantise a parameter's tensor into memory of its own."""
        raw = self._file.raw(parameter.gguf_name)
        if parameter.interleaved_heads is not None:
            raw = split_halves(raw, parameter.shape[0], parameter.interleaved_heads)
        out = empty_tensor(parameter.shape, dtype)
        dequantize_into(out.view(-1), raw, self._file.tensors[parameter.gguf_name].type)
        return out

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()


def split_halves(raw: NDArray[np.uint8], num_rows: int, num_heads: int) -> NDArray[np.uint8]:
    """Undo the row order of Q and K in GGUF files of Llama: from (0, D/2, 1, D/2 + 1, ...) per head to (0, 1, 2, ...).

    raw: the tensor's bytes, rows one after the other; rows are quantised by themselves, so moving them loses nothing.
    Returns a copy.
    """
    pairs = raw.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)


def dequantize_into(out: Tensor, raw: NDArray[np.uint8], quant: str) -> None:
    """Turn a tensor's bytes into numbers.

    out: (n,) of any float dtype; raw: (nbytes,); quant: a name of QUANT_TYPES. Infinite scales of a damaged file
    become infinite weights: rows that meet them fail.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[quant]
    step = _PIECE_BYTES // _BLOCK_BYTES[quant] * _BLOCK_BYTES[quant]
    at = 0
    for start in range(0, raw.size, step):
        with np.errstate(over="ignore", invalid="ignore"):
            piece = dequantize(raw[None, start : start + step], kind)[0]  # as one row: the library loops over rows
        if not piece.flags.writeable:
            piece = piece.copy()
        out[at : at + piece.size] = torch.from_numpy(piece)
        at += piece.size

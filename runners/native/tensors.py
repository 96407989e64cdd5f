"""Tensors of a model as its files hold them: bytes, shape and format, memory-mapped. No torch, no copies."""

import mmap
import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.core.errors import ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.core.model_files.gguf import QUANT_TYPES, GGUFFile
from headrace.core.model_files.metadata import parse_json, read_json
from headrace.runners.loading.dummy import DummySource
from headrace.runners.loading.source import TensorList
from headrace.runners.models.contract import Family, Parameter
from headrace.runners.native.library import FORMATS

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 1 << 27
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_QUANTS = {quant.name: quant for quant in QUANT_TYPES.values()}


class RawTensor(Struct, frozen=True):
    """One tensor of a file."""

    shape: tuple[int, ...]
    """Outermost dimension first."""
    format: str
    """As GGUF names it: F32, F16, BF16, Q8_0 and so on."""
    data: NDArray[np.uint8]
    """(nbytes,), read-only; what keeps the file mapped."""


class TensorFile(TensorList, Protocol):
    """The open file or files of one model."""

    is_gguf: bool

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor that shapes() lists."""

    def close(self) -> None:
        """Unmap the files, once no tensor is left."""


def open_tensors(path: Path, is_dummy: bool = False) -> TensorFile:
    """Open a model folder or GGUF file; dummy: its weights are made up. Raises ModelError."""
    if is_dummy:
        return DummyTensors(path)
    return FolderTensors(path) if path.is_dir() else GGUFTensors(path)


class GGUFTensors:
    """A GGUF file. Implements TensorFile."""

    is_gguf = True

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
        """List all tensors."""
        return {name: info.shape for name, info in self._file.tensors.items()}

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor as it is; types that the library can't read are dequantised to F32."""
        info, raw = self._file.tensors[name], self._file.raw(name)
        if info.type in FORMATS:
            return RawTensor(info.shape, info.type, raw)
        return RawTensor(info.shape, "F32", _dequantised(raw, info.type, info.shape[-1]))

    def close(self) -> None:
        """Unmap the file, once no tensor is left."""
        self._file.close()


def _dequantised(raw: NDArray[np.uint8], quant: str, row_length: int) -> NDArray[np.uint8]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    row_bytes = row_length // _QUANTS[quant].block_size * _QUANTS[quant].block_bytes
    values: NDArray[np.float32] = dequantize(raw.reshape(-1, row_bytes), GGMLQuantizationType[quant])
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)


class FolderTensors:
    """A Hugging Face folder: config.json and safetensors files, single or sharded. Implements TensorFile."""

    is_gguf = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(path / "config.json")
        self.architecture = str(self._config.get("model_type", ""))
        self._found: dict[str, RawTensor] = {}
        for shard in _shards(path):
            for name, tensor in read_safetensors(path / shard).items():
                if name in self._found:
                    raise ModelFileDamaged(f"{path}: tensor {name} is in two files")
                self._found[name] = tensor

    def config(self, family: Family) -> Any:
        """Read the family's config from config.json."""
        return family.read_folder(str(self.path / "config.json"), self._config)

    def name_of(self, parameter: Parameter) -> str:
        """Return the parameter's name, which is Hugging Face's."""
        return parameter.name

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Return the parameter's own shape."""
        return parameter.shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List all tensors."""
        return {name: tensor.shape for name, tensor in self._found.items()}

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor as it is."""
        return self._found[name]

    def close(self) -> None:
        """Let the files go, once no tensor is left."""
        self._found.clear()


class DummyTensors(DummySource):
    """Made-up weights, as a folder in F32 would have them. Implements TensorFile."""

    is_gguf = False

    def tensor(self, name: str) -> RawTensor:
        """Make up a tensor."""
        parameter = self.parameter(name)
        values = self.values(name)
        values -= np.float32(parameter.folder_offset)  # which is added to what folders hold
        return RawTensor(parameter.shape, "F32", values.reshape(-1).view(np.uint8))


def _shards(folder: Path) -> list[str]:
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if not (folder / _INDEX).is_file():
        raise ModelNotFound(f"{folder} has neither {_SINGLE} nor {_INDEX}; other weight files aren't supported")
    places = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelFileDamaged(f"{folder / _INDEX}: weight_map is {places!r:.80}, must name a file for each tensor")
    shards = sorted({str(shard) for shard in places.values()})
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise ModelFileDamaged(f"{folder / _INDEX}: {outside[0]!r:.80} must be a file of this folder")
    return shards


def read_safetensors(path: Path) -> dict[str, RawTensor]:
    """Map a safetensors file, every place in it checked. Raises ModelFileDamaged, UnsupportedModel.

    Source: the safetensors format, huggingface/safetensors README.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileDamaged(f"{path} can't be read: {error}") from error
    header_bytes = struct.unpack_from("<Q", mapped)[0] if len(mapped) >= 8 else len(mapped)
    if header_bytes > min(len(mapped) - 8, _MAX_HEADER_BYTES):
        raise ModelFileDamaged(f"{path}: its header of {header_bytes} bytes goes beyond the end of the file")
    header = parse_json(f"{path}: its header", mapped[8 : 8 + header_bytes])
    data = np.frombuffer(mapped, np.uint8)[8 + header_bytes :]
    return {name: _entry(path, name, entry, data) for name, entry in header.items() if name != "__metadata__"}


class _Entry(Struct, frozen=True):
    """One tensor of a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _entry(path: Path, name: str, entry: Any, data: NDArray[np.uint8]) -> RawTensor:
    from headrace.runners.models.checks import checked

    found = checked(f"{path}: tensor {name}", _Entry, entry)
    if found.dtype not in _ITEM_BYTES:
        raise UnsupportedModel(f"{path}: tensor {name} is {found.dtype}; readable are {', '.join(_ITEM_BYTES)}")
    begin, end = found.data_offsets
    count = 1
    for size in found.shape:
        count *= size
    if not 0 <= begin <= end <= len(data) or min(found.shape, default=0) < 0:
        raise ModelFileDamaged(f"{path}: tensor {name} goes beyond the end of the file; download it again")
    if end - begin != count * _ITEM_BYTES[found.dtype]:
        raise ModelFileDamaged(f"{path}: tensor {name} {found.shape} {found.dtype} has {end - begin} bytes")
    return RawTensor(found.shape, found.dtype, data[begin:end])

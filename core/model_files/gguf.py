"""Read GGUF files: metadata, tensor places, raw tensor bytes. Maps the file and trusts no length in it.

Not here: dequantising (runners/loading) and what the metadata means (metadata.py, text/convert.py).
Source: the GGUF specification, versions 2 and 3 (ggml, docs/gguf.md).
"""

import hashlib
import math
import mmap
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.core.errors import ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.core.model_files.cursor import ARRAY, BOOL, MAX_TEXT_BYTES, SCALARS, STRING, U32, U64, ArrayInfo, Cursor

T = TypeVar("T", str, int, float, bool)

MAX_ENTRIES = 1 << 16
"""Most metadata keys, and most tensors; real files have hundreds."""
MAX_NAME_BYTES = 1 << 10
"""Longest metadata key or tensor name."""
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16


_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


class QuantType(NamedTuple):
    """How a tensor's elements are stored: blocks of `block_size` elements in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


QUANT_TYPES = {
    0: QuantType("F32", 1, 4),
    1: QuantType("F16", 1, 2),
    2: QuantType("Q4_0", 32, 18),
    3: QuantType("Q4_1", 32, 20),
    6: QuantType("Q5_0", 32, 22),
    7: QuantType("Q5_1", 32, 24),
    8: QuantType("Q8_0", 32, 34),
    10: QuantType("Q2_K", 256, 84),
    11: QuantType("Q3_K", 256, 110),
    12: QuantType("Q4_K", 256, 144),
    13: QuantType("Q5_K", 256, 176),
    14: QuantType("Q6_K", 256, 210),
    30: QuantType("BF16", 1, 2),
}
"""By ggml type id."""


class TensorInfo(Struct, frozen=True):
    """Where a tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in numpy: the reverse of the file's order."""
    type: str
    """A name of QUANT_TYPES."""
    offset: int
    """Of its first byte in the file."""
    nbytes: int


class GGUFFile:
    """An open GGUF file. Raises ModelNotFound, ModelFileDamaged (what is wrong, and where), UnsupportedModel.

    Everything in the header is checked here: places of tensors lie inside the file and don't overlap.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map_file(path)
        self.metadata: dict[str, str | int | float | bool] = {}
        """Scalars and strings by key."""
        self.arrays: dict[str, ArrayInfo] = {}
        """Arrays by key; `read_array` reads one."""
        self.tensors: dict[str, TensorInfo] = {}
        self._header_size = 0
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file; while arrays of `raw` are alive, their memory stays."""
        with suppress(BufferError):
            self._map.close()

    def raw(self, name: str) -> NDArray[np.uint8]:
        """View a tensor's bytes as they are in the file: (nbytes,), read-only, without a copy."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileDamaged(f"{self.path}: tensor {name} is missing")
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.offset)

    def header_digest(self) -> str:
        """Return the SHA-256 of metadata and tensor list: equal headers mean equal tokenizers and shapes."""
        return hashlib.sha256(self._map[: self._header_size]).hexdigest()

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a scalar or string of the metadata; without a default it must be there."""
        found = self.metadata.get(key, default)
        if found is None:
            raise ModelFileDamaged(f"{self.path}: metadata key {key} is missing")
        if type(found) is not kind:
            raise ModelFileDamaged(f"{self.path}: metadata key {key} is {found!r:.80}, must be {kind.__name__}")
        return found

    def read_array(self, key: str, kind: type[T]) -> list[T]:
        """Return an array of the metadata; it must be there and hold elements of this kind."""
        info = self.arrays.get(key)
        if info is None:
            raise ModelFileDamaged(f"{self.path}: metadata array {key} is missing")
        cursor = Cursor(self.path, self._map, info.offset)
        if info.type == STRING:
            values: list[Any] = [cursor.text(f"an element of {key}", MAX_TEXT_BYTES) for _ in range(info.length)]
        elif info.type == ARRAY:
            raise UnsupportedModel(f"{self.path}: metadata array {key} holds arrays")
        else:
            layout = SCALARS[info.type]
            dtype = np.dtype(bool) if info.type == BOOL else np.dtype(layout.format)
            values = np.frombuffer(self._map, dtype, info.length, info.offset).tolist()
        if values and type(values[0]) is not kind:
            raise ModelFileDamaged(
                f"{self.path}: metadata array {key} holds {type(values[0]).__name__}, not {kind.__name__}"
            )
        return values

    def _read_header(self) -> None:
        cursor = Cursor(self.path, self._map, 0)
        if cursor.take(4, "the magic number") != b"GGUF":
            raise ModelFileDamaged(f"{self.path}: not a GGUF file, it doesn't begin with 'GGUF'")
        version = cursor.number(U32, "the version")
        if version not in (2, 3):
            raise cursor.damaged(f"GGUF version {version}, must be 2 or 3 (a huge number: a big-endian file)", 4)
        num_tensors = cursor.count(_MIN_TENSOR_BYTES, MAX_ENTRIES, "the number of tensors")
        num_keys = cursor.count(_MIN_KEY_BYTES, MAX_ENTRIES, "the number of metadata keys")
        for _ in range(num_keys):
            self._read_key(cursor)
        alignment = self.value("general.alignment", int, 32)
        if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ModelFileDamaged(f"{self.path}: alignment {alignment}, must be a power of 2, 8 to {MAX_ALIGNMENT}")
        found = [_read_tensor(cursor, alignment) for _ in range(num_tensors)]
        self._header_size = cursor.pos
        self._place_tensors(found, -(-cursor.pos // alignment) * alignment)

    def _read_key(self, cursor: Cursor) -> None:
        start = cursor.pos
        key = cursor.text("a metadata key", MAX_NAME_BYTES)
        if not key or key in self.metadata or key in self.arrays:
            raise cursor.damaged(f"metadata key {key!r:.80} is {'there twice' if key else 'empty'}", start)
        type_id = cursor.number(U32, f"the type of {key}")
        if type_id == ARRAY:
            self.arrays[key] = cursor.array(key)
        else:
            self.metadata[key] = cursor.scalar(type_id, key)

    def _place_tensors(self, found: list[TensorInfo], data_start: int) -> None:
        end, before = data_start, "the header"
        for info in sorted(found, key=lambda info: info.offset):
            start = data_start + info.offset
            if start < end:
                raise ModelFileDamaged(f"{self.path}: tensor {info.name} at byte {start} overlaps {before}")
            end, before = start + info.nbytes, f"tensor {info.name}"
            if end > len(self._map):
                raise ModelFileDamaged(
                    f"{self.path}: tensor {info.name} {info.shape} {info.type} ends at byte {end},"
                    f" the file at {len(self._map)}; download it again"
                )
        for info in found:
            if info.name in self.tensors:
                raise ModelFileDamaged(f"{self.path}: tensor {info.name!r:.80} is there twice")
            self.tensors[info.name] = TensorInfo(
                info.name, info.shape, info.type, data_start + info.offset, info.nbytes
            )


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise ModelFileDamaged(f"{path}: the file is empty") from error
    except OSError as error:
        raise ModelNotFound(f"{path}: can't be opened: {error.strerror}") from error


def _read_tensor(cursor: Cursor, alignment: int) -> TensorInfo:
    """Read one tensor's entry; its offset still counts from the start of the data."""
    start = cursor.pos
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    if not name:
        raise cursor.damaged("a tensor's name is empty", start)
    num_dims = cursor.number(U32, f"the dimensions of {name}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.damaged(f"tensor {name} has {num_dims} dimensions, must be 1 to {MAX_DIMS}", start)
    dims = [cursor.number(U64, f"the shape of {name}") for _ in range(num_dims)]
    type_id = cursor.number(U32, f"the type of {name}")
    offset = cursor.number(U64, f"the offset of {name}")
    quant = QUANT_TYPES.get(type_id)
    if quant is None:
        known = ", ".join(quant.name for quant in QUANT_TYPES.values())
        raise UnsupportedModel(f"{cursor.path}: tensor {name} has ggml type {type_id}; readable are {known}")
    if 0 in dims or dims[0] % quant.block_size:
        raise cursor.damaged(f"tensor {name} of type {quant.name} has the shape {tuple(dims)}", start)
    if offset % alignment:
        raise cursor.damaged(f"tensor {name} has the offset {offset}, not a multiple of {alignment}", start)
    nbytes = math.prod(dims) // quant.block_size * quant.block_bytes
    return TensorInfo(name, tuple(reversed(dims)), quant.name, offset, nbytes)

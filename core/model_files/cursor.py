"""The cursor that gguf.py reads headers with: values of all GGUF types, none from beyond the end of the file."""

import mmap
import struct
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged

MAX_TEXT_BYTES = 1 << 24
"""Longest string in the metadata; the longest in real files is a chat template."""
MAX_ARRAY_DEPTH = 4

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""By GGUF value type id; 7 is bool."""
U32, U64 = SCALARS[4], SCALARS[10]


class ArrayInfo(Struct, frozen=True):
    """Where an array of the metadata lies in the file."""

    type: int
    """GGUF value type of the elements."""
    length: int
    offset: int


class Cursor:
    """Reads a header from front to back; every read is checked against the end of the file first."""

    __slots__ = ("_map", "path", "pos")

    def __init__(self, path: Path, mapped: mmap.mmap, pos: int) -> None:
        self.path, self._map, self.pos = path, mapped, pos

    def damaged(self, what: str, at: int | None = None) -> ModelFileDamaged:
        """Build the error that says what is wrong and where (default: here)."""
        return ModelFileDamaged(f"{self.path}: {what}, at byte {self.pos if at is None else at} of {len(self._map)}")

    def take(self, size: int, what: str) -> bytes:
        """Read so many bytes."""
        start = self.skip(size, what)
        return self._map[start : self.pos]

    def skip(self, size: int, what: str) -> int:
        """Step over so many bytes; returns where they begin."""
        if size > len(self._map) - self.pos:
            raise self.damaged(f"{what} goes beyond the end of the file")
        start = self.pos
        self.pos += size
        return start

    def number(self, layout: struct.Struct, what: str) -> Any:
        """Read one number."""
        return layout.unpack_from(self._map, self.skip(layout.size, what))[0]

    def count(self, min_bytes: int, most: int, what: str) -> int:
        """Read a 64-bit count of things that take at least min_bytes each."""
        start = self.pos
        count: int = self.number(U64, what)
        if count > most or count * min_bytes > len(self._map) - self.pos:
            raise self.damaged(f"{what} is {count}: more than fit", start)
        return count

    def text(self, what: str, most: int) -> str:
        """Read a string of at most so many bytes."""
        start = self.pos
        raw = self.take(self.count(1, most, f"the length of {what}"), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} isn't UTF-8", start) from error

    def scalar(self, type_id: int, what: str) -> str | int | float | bool:
        """Read a metadata value that is no array."""
        if type_id == STRING:
            return self.text(what, MAX_TEXT_BYTES)
        layout = SCALARS.get(type_id)
        if layout is None:
            raise self.damaged(f"{what} has the unknown type {type_id}")
        value: int | float = self.number(layout, what)
        if type_id != BOOL:
            return value
        if value > 1:
            raise self.damaged(f"{what} is {value}, must be 0 or 1", self.pos - 1)
        return value == 1

    def array(self, what: str, depth: int = 1) -> ArrayInfo:
        """Step over an array, checking all its lengths."""
        if depth > MAX_ARRAY_DEPTH:
            raise self.damaged(f"{what} holds arrays more than {MAX_ARRAY_DEPTH} deep")
        type_id = self.number(U32, f"the element type of {what}")
        layout = SCALARS.get(type_id)
        if layout is None and type_id not in (STRING, ARRAY):
            raise self.damaged(f"{what} has elements of the unknown type {type_id}", self.pos - 4)
        min_bytes = layout.size if layout else 12 if type_id == ARRAY else 8
        length = self.count(min_bytes, len(self._map), f"the length of {what}")
        info = ArrayInfo(type_id, length, self.pos)
        if layout:
            self.skip(length * layout.size, what)
        elif type_id == STRING:
            self._skip_texts(length, what)
        else:
            for _ in range(length):
                self.array(what, depth + 1)
        return info

    def _skip_texts(self, length: int, what: str) -> None:
        """Step over strings; a tight loop, since a vocabulary has some 100,000."""
        pos, last, unpack, mapped = self.pos, len(self._map) - 8, U64.unpack_from, self._map
        while length and pos <= last:
            pos += 8 + unpack(mapped, pos)[0]
            length -= 1
        if length or pos > last + 8:
            raise self.damaged(f"{what} goes beyond the end of the file")
        self.pos = pos

"""Read SentencePiece models (tokenizer.model): the few fields that tokenizing needs, and no length trusted.

Source: sentencepiece_model.proto of SentencePiece, and the encoding of Protocol Buffers.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged

MAX_BYTES = 1 << 26
"""Largest file; real ones have some megabytes."""

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types."""
_FLOAT = struct.Struct("<f")

_Field = tuple[int, int | bytes]
"""Number and value: a varint, or the bytes of everything else."""


class SentencePieceModel(Struct):
    """The fields that matter, with the defaults of SentencePiece's own schema. Filled by read_sentencepiece only."""

    pieces: list[str] = []
    """By id."""
    scores: list[float] = []
    types: list[int] = []
    """A Kind of text/vocabulary.py by id."""
    model_type: int = 1
    """1: unigram, 2: BPE."""
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    """-1 in any of these: there is none."""
    whitespace_as_suffix: bool = False
    charsmap: bytes = b""
    add_prefix: bool = True
    trim_spaces: bool = True
    escape_spaces: bool = True


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a tokenizer.model. Raises ModelFileDamaged if it is none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileDamaged(f"{path} has more than {MAX_BYTES} bytes, so it is no SentencePiece model")
        model = SentencePieceModel()
        for number, value in _fields(path.read_bytes()):
            if isinstance(value, bytes):
                _READERS.get(number, _skip)(model, value)
    except OSError as error:
        raise ModelFileDamaged(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise ModelFileDamaged(f"{path} is no SentencePiece model: {error}") from error
    if not model.pieces:
        raise ModelFileDamaged(f"{path} is no SentencePiece model: it has no pieces")
    return model


def _fields(data: bytes) -> Iterator[_Field]:
    """Yield the fields of a message in their order. Raises ValueError, IndexError, struct.error."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire_type == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"unknown wire type {wire_type} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes at byte {at} goes beyond the end")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number at byte {at} is too long")


def _read_piece(model: SentencePieceModel, data: bytes) -> None:
    piece, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                piece = value.decode()
            case 2, bytes():
                score = _FLOAT.unpack(value)[0]
            case 3, int():
                kind = value
    model.pieces.append(piece)
    model.scores.append(score)
    model.types.append(kind)


def _read_trainer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        match number, value:
            case 3, int():
                model.model_type = value
            case 24, int():
                model.whitespace_as_suffix = bool(value)
            case 40, int():
                model.unk_id = _signed(value)
            case 41, int():
                model.bos_id = _signed(value)
            case 42, int():
                model.eos_id = _signed(value)
            case 43, int():
                model.pad_id = _signed(value)


def _read_normalizer(model: SentencePieceModel, data: bytes) -> None:
    for number, value in _fields(data):
        match number, value:
            case 2, bytes():
                model.charsmap = value
            case 3, int():
                model.add_prefix = bool(value)
            case 4, int():
                model.trim_spaces = bool(value)
            case 5, int():
                model.escape_spaces = bool(value)


def _skip(model: SentencePieceModel, data: bytes) -> None:
    """Leave a field alone that tokenizing doesn't need."""


_READERS = {1: _read_piece, 2: _read_trainer, 3: _read_normalizer}
"""By field number of the whole model."""


def _signed(value: int) -> int:
    """Read a varint as the 32-bit number that it was."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value

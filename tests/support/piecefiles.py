"""Writes SentencePiece models: the fields that matter of its protocol buffer."""

import struct


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def float_field(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def piece_file(
    pieces: list[tuple[str, float, int]],
    *,
    model_type: int = 2,
    trainer: bytes = b"",
    charsmap: bytes = b"",
    add_prefix: bool = True,
    trim_spaces: bool = False,
) -> bytes:
    """Build a tokenizer.model.

    pieces: text, score and kind of each token.
    trainer: more fields of its trainer_spec.
    """
    model = b""
    for text, score, kind in pieces:
        model += bytes_field(1, bytes_field(1, text.encode()) + float_field(2, score) + number_field(3, kind))
    model += bytes_field(2, number_field(3, model_type) + trainer)
    rules = bytes_field(1, b"identity") + (bytes_field(2, charsmap) if charsmap else b"")
    return model + bytes_field(3, rules + number_field(3, add_prefix) + number_field(4, trim_spaces))

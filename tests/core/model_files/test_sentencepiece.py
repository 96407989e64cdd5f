import random
from contextlib import suppress
from pathlib import Path

import pytest
from piecefiles import bytes_field, float_field, number_field, piece_file, varint

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.sentencepiece import SentencePieceModel, read_sentencepiece

PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("\u2581ä", -0.5, 1), ("<0x41>", 0.0, 6)]


def read(folder: Path, content: bytes) -> SentencePieceModel:
    (folder / "tokenizer.model").write_bytes(content)
    return read_sentencepiece(folder / "tokenizer.model")


def test_pieces_scores_and_kinds_are_read(tmp_path: Path) -> None:
    model = read(tmp_path, piece_file(PIECES, charsmap=b"\1\2"))
    assert list(zip(model.pieces, model.scores, model.types, strict=True)) == PIECES
    assert (model.model_type, model.add_prefix, model.trim_spaces, model.charsmap) == (2, True, False, b"\1\2")
    assert (model.unk_id, model.bos_id, model.eos_id, model.pad_id) == (0, 1, 2, -1)


def test_ids_may_be_changed_and_absent(tmp_path: Path) -> None:
    trainer = number_field(40, 3) + number_field(41, -1) + number_field(42, 1) + number_field(43, 0)
    model = read(tmp_path, piece_file(PIECES, trainer=trainer))
    assert (model.unk_id, model.bos_id, model.eos_id, model.pad_id) == (3, -1, 1, 0)


def test_what_is_left_out_has_the_schemas_default(tmp_path: Path) -> None:
    model = read(tmp_path, bytes_field(1, bytes_field(1, b"a")))
    assert model == SentencePieceModel(["a"], [0.0], [1])


def test_unknown_fields_are_skipped(tmp_path: Path) -> None:
    more = number_field(900, 5) + float_field(901, 1.0) + varint(902 << 3 | 1) + bytes(8) + bytes_field(903, b"x")
    model = read(tmp_path, more + piece_file(PIECES) + more)
    assert model.pieces == [text for text, _, _ in PIECES]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no pieces"),
        (b"IQ== 0\nIg== 1\n", "is no SentencePiece model"),  # a vocabulary of tiktoken has the same name
        (bytes_field(1, bytes_field(1, b"\xff")), "can't decode"),
        (varint(1 << 3 | 2) + varint(1 << 60) + b"x", "goes beyond the end"),
        (varint(1 << 3 | 3), "unknown wire type 3"),
        (b"\xff" * 20, "too long"),
        (bytes_field(1, varint(2 << 3 | 2) + varint(1) + b"x"), "no SentencePiece model"),
    ],
)
def test_H03_what_is_no_sentencepiece_model_is_damage(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFileDamaged, match=message):
        read(tmp_path, content)


def test_H03_any_flipped_byte_is_read_or_damage(tmp_path: Path) -> None:
    whole, rng = piece_file(PIECES, charsmap=b"abc"), random.Random(0)
    for position in range(len(whole)):
        content = bytearray(whole)
        content[position] ^= rng.randrange(1, 256)
        with suppress(ModelFileDamaged):
            read(tmp_path, bytes(content))


def test_H03_a_file_cut_at_any_byte_is_read_or_damage(tmp_path: Path) -> None:
    whole = piece_file(PIECES)
    for size in range(len(whole)):
        with suppress(ModelFileDamaged):
            read(tmp_path, whole[:size])

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import ModelError, ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.core.model_files.gguf import QUANT_TYPES, GGUFFile

New = Callable[[], Any]
Change = Callable[[Any], object]
U64 = struct.Struct("<Q").pack
TWO_TO_60 = 1 << 60


def sound(new: New) -> Any:
    """Build a small sound file with a value of each kind."""
    builder = new().key("general.architecture", "llama").key("a.number", 7).key("a.flag", True).key("a.part", 0.5)
    builder.key("words", ["a", "bc", "ü"]).key("numbers", [1, -2, 3])
    builder.tensor("first", [4, 3], np.arange(12, dtype="<f4").tobytes())
    return builder.tensor("second", [32, 2], bytes(range(68)), type_id=8)


def opened(path: Path, content: bytes) -> GGUFFile:
    path.write_bytes(content)
    return GGUFFile(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_metadata_arrays_and_tensors_are_read(new_gguf: New, path: Path) -> None:
    with opened(path, sound(new_gguf).build()) as file:
        assert file.metadata == {"general.architecture": "llama", "a.number": 7, "a.flag": True, "a.part": 0.5}
        assert file.read_array("words", str) == ["a", "bc", "ü"]
        assert file.read_array("numbers", int) == [1, -2, 3]
        assert {name: (info.shape, info.type) for name, info in file.tensors.items()} == {
            "first": ((3, 4), "F32"),
            "second": ((2, 32), "Q8_0"),
        }
        assert file.raw("first").view("<f4").tolist() == list(range(12))
        assert file.raw("second").tolist() == list(range(68))


def test_raw_views_outlive_the_file_and_cannot_be_written(new_gguf: New, path: Path) -> None:
    file = opened(path, sound(new_gguf).build())
    view = file.raw("second")
    file.close()
    file.close()
    assert view[67] == 67
    assert not view.flags.writeable


def test_what_the_gguf_library_writes_is_read_alike(path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_token_list(["a", "b"])
    weights = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    quantized = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", weights)
    writer.add_tensor("quantized", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        assert file.value("llama.context_length", int) == 64
        assert file.read_array("tokenizer.ggml.tokens", str) == ["a", "b"]
        assert file.tensors["quantized"].shape == (4, 64)
        assert (file.raw("plain").view("<f4").reshape(4, 64) == weights).all()
        assert (file.raw("quantized") == quantized.reshape(-1)).all()


def test_H05_every_listed_type_has_the_librarys_block_size() -> None:
    gguf = pytest.importorskip("gguf")
    for type_id, quant in QUANT_TYPES.items():
        listed = gguf.GGMLQuantizationType(type_id)
        assert (listed.name, gguf.GGML_QUANT_SIZES[listed]) == (quant.name, (quant.block_size, quant.block_bytes))


@pytest.mark.parametrize("type_id", QUANT_TYPES)
def test_H05_a_tensor_of_each_type_has_its_place(new_gguf: New, path: Path, type_id: int) -> None:
    quant = QUANT_TYPES[type_id]
    nbytes = 2 * 256 // quant.block_size * quant.block_bytes
    with opened(path, new_gguf().tensor("t", [256, 2], bytes(nbytes), type_id).build()) as file:
        assert (file.tensors["t"].type, file.tensors["t"].nbytes) == (quant.name, nbytes)


def test_H05_an_unknown_type_is_named(new_gguf: New, path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="tensor odd has ggml type 77"):
        opened(path, new_gguf().tensor("odd", [4], bytes(16), 77).build())


DAMAGES: dict[str, tuple[Change, str]] = {
    "bad magic": (lambda b: setattr(b, "magic", b"GGML"), "doesn't begin with 'GGUF'"),
    "version 1": (lambda b: setattr(b, "version", 1), "version 1"),
    "big-endian version": (lambda b: setattr(b, "version", 3 << 24), "big-endian"),
    "huge number of keys": (lambda b: setattr(b, "num_keys", 1 << 63), "number of metadata keys"),
    "huge number of tensors": (lambda b: setattr(b, "num_tensors", (1 << 64) - 1), "number of tensors"),
    "one key too many": (lambda b: setattr(b, "num_keys", 7), "unknown type|beyond the end|more than fit"),
    "empty key": (lambda b: b.key("", 1), "empty"),
    "key twice": (lambda b: b.key("a.number", 8), "'a.number' is there twice"),
    "array key twice": (lambda b: b.key("words", 8), "'words' is there twice"),
    "huge key": (lambda b: b.keys.append(U64(TWO_TO_60)), "length of a metadata key is 1152921504606846976"),
    "key of no UTF-8": (lambda b: b.raw_key(b"\xff", 4, bytes(4)), "isn't UTF-8"),
    "unknown value type": (lambda b: b.raw_key("k", 13, bytes(8)), "k has the unknown type 13"),
    "huge string": (lambda b: b.raw_key("k", 8, U64(TWO_TO_60)), "length of k is"),
    "string of no UTF-8": (lambda b: b.raw_key("k", 8, U64(1) + b"\xff"), "k isn't UTF-8"),
    "flag of 2": (lambda b: b.raw_key("k", 7, b"\2"), "k is 2, must be 0 or 1"),
    "huge array": (lambda b: b.raw_key("k", 9, struct.pack("<IQ", 4, TWO_TO_60)), "length of k is"),
    "array that wraps": (lambda b: b.raw_key("k", 9, struct.pack("<IQ", 10, 1 << 61)), "length of k is"),
    "huge array of strings": (lambda b: b.raw_key("k", 9, struct.pack("<IQ", 8, TWO_TO_60)), "length of k is"),
    "string in array goes too far": (
        lambda b: b.raw_key("k", 9, struct.pack("<IQQ", 8, 2, TWO_TO_60) + bytes(8)),
        "k goes beyond the end",
    ),
    "last string in array goes too far": (
        lambda b: b.raw_key("k", 9, struct.pack("<IQQ", 8, 1, TWO_TO_60)),
        "k goes beyond the end",
    ),
    "array of unknown type": (
        lambda b: b.raw_key("k", 9, struct.pack("<IQ", 99, 1)),
        "elements of the unknown type 99",
    ),
    "arrays too deep": (lambda b: b.raw_key("k", 9, struct.pack("<IQ", 9, 1) * 9), "more than 4 deep"),
    "alignment 0": (lambda b: b.key("general.alignment", 0), "alignment 0"),
    "alignment 3": (lambda b: b.key("general.alignment", 3), "alignment 3"),
    "alignment 2**31": (lambda b: b.key("general.alignment", 1 << 31), "alignment 2147483648"),
    "alignment of a string": (lambda b: b.key("general.alignment", "32"), "must be int"),
    "tensor of no name": (lambda b: b.raw_tensor("", [4], 0, 0), "name is empty"),
    "tensor twice": (lambda b: b.tensor("first", [4], bytes(16)), "'first' is there twice"),
    "no dimension": (lambda b: b.raw_tensor("t", [], 0, 0), "t has 0 dimensions"),
    "five dimensions": (lambda b: b.raw_tensor("t", [1] * 5, 0, 0), "t has 5 dimensions"),
    "dimension 0": (lambda b: b.raw_tensor("t", [4, 0], 0, 0), r"t of type F32 has the shape \(4, 0\)"),
    "half a block": (lambda b: b.raw_tensor("t", [48], 8, 0), "t of type Q8_0 has the shape"),
    "product that wraps": (lambda b: b.raw_tensor("t", [1 << 32, 1 << 32], 0, 4096), "t .* ends at byte"),
    "product that wraps to 4": (lambda b: b.raw_tensor("t", [(1 << 62) + 1, 4], 0, 4096), "t .* ends at byte"),
    "offset past the end": (lambda b: b.raw_tensor("t", [4], 0, 1 << 20), "t .* ends at byte"),
    "offset that wraps": (lambda b: b.raw_tensor("t", [4], 0, (1 << 64) - 32), "t .* ends at byte"),
    "offset not aligned": (lambda b: b.raw_tensor("t", [4], 0, 4), "t has the offset 4"),
    "overlap": (lambda b: b.raw_tensor("t", [4], 0, 32), "overlaps tensor"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_H03_a_crafted_header_is_named(new_gguf: New, path: Path, name: str) -> None:
    change, message = DAMAGES[name]
    builder = sound(new_gguf)
    change(builder)
    with pytest.raises(ModelFileDamaged, match=message) as caught:
        opened(path, builder.build())
    assert str(path) in str(caught.value)


def test_H03_no_length_field_makes_the_reader_allocate(new_gguf: New, path: Path) -> None:
    for name in ("huge string", "huge array", "huge array of strings", "huge number of keys", "product that wraps"):
        builder = sound(new_gguf)
        DAMAGES[name][0](builder)
        content = builder.build()
        tracemalloc.start()
        with pytest.raises(ModelFileDamaged):
            opened(path, content)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


def test_H03_a_file_cut_at_any_byte_is_damaged(new_gguf: New, path: Path) -> None:
    whole = sound(new_gguf).build()
    for size in range(len(whole)):
        with pytest.raises(ModelFileDamaged):
            opened(path, whole[:size])


def test_H03_any_flipped_byte_is_read_or_refused_with_a_typed_error(new_gguf: New, path: Path) -> None:
    builder = sound(new_gguf)
    whole, rng = builder.build(), np.random.default_rng(0)
    for position in range(len(builder.header())):
        content = bytearray(whole)
        content[position] ^= int(rng.integers(1, 256))
        try:
            opened(path, bytes(content)).close()
        except ModelError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("step", [1 << 16, pytest.param(1 << 10, marks=pytest.mark.verify)])
def test_H03_the_real_header_cut_anywhere_is_damaged(smollm2: Path, path: Path, step: int) -> None:
    with GGUFFile(smollm2) as file:
        header_size = min(info.offset for info in file.tensors.values())
    with smollm2.open("rb") as source:
        path.write_bytes(source.read(header_size))
    for size in range(header_size - 1, 0, -step):
        os.truncate(path, size)
        with pytest.raises(ModelFileDamaged):
            GGUFFile(path)


def test_H04_a_missing_tensor_is_named(new_gguf: New, path: Path) -> None:
    with (
        opened(path, sound(new_gguf).build()) as file,
        pytest.raises(ModelFileDamaged, match="tensor third is missing"),
    ):
        file.raw("third")


def test_values_of_the_wrong_type_or_missing_are_named(new_gguf: New, path: Path) -> None:
    with opened(path, sound(new_gguf).build()) as file:
        with pytest.raises(ModelFileDamaged, match=r"a\.flag is True, must be int"):
            file.value("a.flag", int)
        with pytest.raises(ModelFileDamaged, match=r"a\.nothing is missing"):
            file.value("a.nothing", int)
        with pytest.raises(ModelFileDamaged, match="words holds str, not int"):
            file.read_array("words", int)
        with pytest.raises(ModelFileDamaged, match="array a.nothing is missing"):
            file.read_array("a.nothing", int)


def test_a_file_that_is_not_there_is_not_found(path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"model\.gguf"):
        GGUFFile(path)


def test_equal_headers_have_equal_digests(new_gguf: New, tmp_path: Path) -> None:
    builder, other = sound(new_gguf), sound(new_gguf).key("more", 1)
    contents = [builder.build(), builder.build()[:-1] + b"!", other.build()]
    digests = [opened(tmp_path / f"{i}.gguf", content).header_digest() for i, content in enumerate(contents)]
    assert digests[0] == digests[1] != digests[2]

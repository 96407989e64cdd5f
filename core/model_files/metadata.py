"""What the input process must know of a model: sizes and end-of-sequence ids. Shapes of layers are the runner's."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.gguf import GGUFFile

MAX_JSON_BYTES = 1 << 26
"""Largest configuration file; the largest are those that list a vocabulary's added tokens, with some megabytes."""
_LENGTH_KEYS = ("max_position_embeddings", "n_positions")
"""Of config.json; the second one is GPT-2's."""
_GGUF_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class ModelMetadata(Struct, frozen=True):
    """Facts of a model, read without its weights."""

    architecture: str
    """Family name, such as llama: general.architecture of a GGUF file, model_type of a folder."""
    context_length: int
    """Tokens the model was made for."""
    vocab_size: int
    """Rows of its output layer; a tokenizer may know fewer ids."""
    eos_ids: tuple[int, ...]
    """Ids that end a sequence, the main one first."""


def read_metadata(model: Path) -> ModelMetadata:
    """Read the facts of a GGUF file or model folder. Raises ModelFileDamaged."""
    if model.is_dir():
        return _of_folder(model)
    with GGUFFile(model) as file:
        return gguf_metadata(file)


def gguf_metadata(file: GGUFFile) -> ModelMetadata:
    """Read the facts of an open GGUF file."""
    architecture = file.value("general.architecture", str)
    tokens = file.arrays.get("tokenizer.ggml.tokens")
    num_tokens = tokens.length if tokens else None
    vocab_size = file.value(f"{architecture}.vocab_size", int, num_tokens)
    found = [file.value(f"tokenizer.ggml.{key}", int, -1) for key in _GGUF_END_KEYS]
    eos_ids = tuple(dict.fromkeys(eos_id for eos_id in found if eos_id != -1))
    _check_ids(file.path, eos_ids, vocab_size)
    return ModelMetadata(architecture, file.value(f"{architecture}.context_length", int), vocab_size, eos_ids)


def _of_folder(folder: Path) -> ModelMetadata:
    config = read_json(folder / "config.json")
    vocab_size = _whole(folder, config, "vocab_size")
    eos_ids = folder_eos_ids(folder)
    _check_ids(folder, eos_ids, vocab_size)
    length_key = next((key for key in _LENGTH_KEYS if key in config), _LENGTH_KEYS[0])
    context_length = _whole(folder, config, length_key)
    return ModelMetadata(str(config.get("model_type", "")), context_length, vocab_size, eos_ids)


def folder_eos_ids(folder: Path) -> tuple[int, ...]:
    """Return a model folder's end-of-sequence ids: generation_config.json's, where it has some, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        found = read_json(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        if found is not None:
            ids = found if isinstance(found, list) else [found]
            if not all(type(eos_id) is int for eos_id in ids):
                raise ModelFileDamaged(f"{folder / name}: eos_token_id is {found!r}, must be token ids")
            return tuple(dict.fromkeys(ids))
    return ()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelFileDamaged."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileDamaged(f"{path} has more than {MAX_JSON_BYTES} bytes, so it is no configuration")
        return parse_json(str(path), path.read_bytes())
    except OSError as error:
        raise ModelFileDamaged(f"{path} can't be read: {error}") from error


def parse_json(where: str, content: bytes) -> dict[str, Any]:
    """Parse a JSON object; `where` names it in errors. Raises ModelFileDamaged."""
    try:
        found = json.loads(content)
        json.dumps(found, ensure_ascii=False).encode()  # refuses halves of surrogate pairs, which are no text
    except (ValueError, RecursionError) as error:
        raise ModelFileDamaged(f"{where} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelFileDamaged(f"{where} holds a {type(found).__name__}, must be an object")
    return found


def _whole(folder: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ModelFileDamaged(f"{folder / 'config.json'}: {key} is {value!r}, must be a whole number above 0")
    return value


def _check_ids(model: Path, ids: tuple[int, ...], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ModelFileDamaged(f"{model}: the end-of-sequence id {token_id} is beyond the {vocab_size} tokens")

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.metadata import ModelMetadata, read_metadata

CONFIG = {"model_type": "llama", "max_position_embeddings": 512, "vocab_size": 100, "eos_token_id": 7}


def folder(path: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_a_folders_facts_come_from_its_config(tmp_path: Path) -> None:
    assert read_metadata(folder(tmp_path, CONFIG)) == ModelMetadata("llama", 512, 100, (7,))


def test_A11_generation_config_may_list_several_eos_ids(tmp_path: Path) -> None:
    assert read_metadata(folder(tmp_path, CONFIG, {"eos_token_id": [2, 0, 2]})).eos_ids == (2, 0)
    assert read_metadata(folder(tmp_path, CONFIG, {"temperature": 1})).eos_ids == (7,)


def test_a_model_may_have_no_eos(tmp_path: Path) -> None:
    assert read_metadata(folder(tmp_path, CONFIG | {"eos_token_id": None})).eos_ids == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"vocab_size": "many"}, "vocab_size is 'many'"),
        (CONFIG | {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        (CONFIG | {"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        (CONFIG | {"eos_token_id": [100]}, "id 100 is beyond the 100 tokens"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileDamaged, match=message):
        read_metadata(folder(tmp_path, config))


def test_a_config_that_is_no_json_object_is_named(tmp_path: Path) -> None:
    for content in ("{", "[]", ""):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelFileDamaged, match=r"config\.json"):
            read_metadata(tmp_path)


def test_a_gguf_files_facts_come_from_its_header(tokenizer_gguf: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(tokenizer_gguf(tokenizer__ggml__eot_token_id=0).build())
    metadata = read_metadata(path)
    assert (metadata.architecture, metadata.context_length, metadata.eos_ids) == ("llama", 512, (2, 0))


def test_a_gguf_files_eos_id_lies_in_its_vocabulary(tokenizer_gguf: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(tokenizer_gguf(tokenizer__ggml__eos_token_id=9999).build())
    with pytest.raises(ModelFileDamaged, match="id 9999 is beyond"):
        read_metadata(path)


def test_the_real_models_facts(smollm2: Path) -> None:
    assert read_metadata(smollm2) == ModelMetadata("llama", 8192, 49152, (2,))

from pathlib import Path

import pytest

from headrace.core.errors import ModelNotFound
from headrace.core.model_files.resolve import resolve_model

NAME = "smollm2-135m-instruct"


def test_a_model_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(tmp_path) == resolve_model(str(tmp_path)) == tmp_path


def test_a_gguf_file_is_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert resolve_model(file) == file


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        resolve_model(tmp_path)


def test_another_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    with pytest.raises(ModelNotFound, match=r"neither a \.gguf file nor a model folder"):
        resolve_model(tmp_path / "a.bin")


def test_an_unknown_name_lists_the_catalogue() -> None:
    with pytest.raises(ModelNotFound, match=f"'nonsense' is no model folder.*{NAME}"):
        resolve_model("nonsense")


def test_a_catalogue_name_that_is_not_cached_says_pull(cache_home: Path) -> None:
    with pytest.raises(ModelNotFound, match=f"headrace pull {NAME}"):
        resolve_model(NAME)


def test_a_cached_catalogue_name_is_its_file(cache_home: Path) -> None:
    file = cache_home / "models" / NAME / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    assert resolve_model(NAME) == file

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.recommended import recommended_params
from headrace.core.params import SamplingParams


def folder(path: Path, **generation: Any) -> Path:
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_generation_config_recommends_sampling_parameters(tmp_path: Path) -> None:
    model = folder(
        tmp_path, do_sample=True, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.1, max_length=32768
    )
    assert recommended_params(model) == SamplingParams(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.1)


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    assert recommended_params(tmp_path) == SamplingParams()
    assert recommended_params(folder(tmp_path, temperature=None)) == SamplingParams()


def test_a_gguf_file_may_recommend_them_too(tokenizer_gguf: Callable[..., Any], tmp_path: Path) -> None:
    builder = tokenizer_gguf().key("general.sampling.temp", 0.5).key("general.sampling.top_k", 64)
    (tmp_path / "a.gguf").write_bytes(builder.build())
    assert recommended_params(tmp_path / "a.gguf") == SamplingParams(temperature=0.5, top_k=64)


@pytest.mark.parametrize(("name", "value"), [("temperature", "warm"), ("top_p", 2), ("top_k", 0.5), ("min_p", [])])
def test_H03_a_value_out_of_its_limits_is_damage(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ModelFileDamaged, match=rf"generation_config\.json: {name} is"):
        recommended_params(folder(tmp_path, **{name: value}))

"""Which runner `auto` chooses, and that it says why."""

import logging
import time
from pathlib import Path

import pytest
from families import FAMILIES

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, ModelFileDamaged, UnsupportedModel
from headrace.core.providers import RunnerContext
from headrace.runners import auto
from headrace.runners.native import build


def context(model: Path) -> RunnerContext:
    return RunnerContext(EngineConfig(max_model_len=64), model, 4, time.monotonic, families=FAMILIES)


def test_a_decoder_of_a_known_family_runs_native(llama_folder, smol_gguf, caplog):
    assert [auto.choose(context(model)) for model in (llama_folder, smol_gguf)] == ["native", "native"]
    assert not caplog.records


def test_a_family_that_the_library_does_not_know_runs_on_torch(tmp_path, caplog):
    from tiny_families import tiny
    from tiny_llama import save_folder

    folder = save_folder(tiny("gpt2"), tmp_path / "gpt2")
    with caplog.at_level(logging.WARNING, "headrace"):
        assert auto.choose(context(folder)) == "torch"
    assert "runner torch instead of native" in caplog.text
    assert "can't run gpt2" in caplog.text


def test_without_library_and_compiler_torch_takes_over_and_the_log_says_what_helps(
    llama_folder, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert auto.choose(context(llama_folder)) == "torch"
    assert "apt install g++" in caplog.text


def test_a_damaged_model_is_nobodys(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(ModelFileDamaged):
        auto.choose(context(broken))


def test_without_torch_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"lacks torch, transformers, safetensors: pip install 'headrace\[torch\]'"):
        auto.build_torch(context(tmp_path), None)


@pytest.mark.parametrize("name", ["auto", "native", "torch"])
def test_each_name_builds_a_model_that_loads(name, smol_gguf):
    model = auto.build_model(context(smol_gguf), name)
    try:
        assert model.load().max_model_len == 64
    finally:
        model.close()


def test_native_alone_refuses_what_it_can_not_run(tmp_path):
    from tiny_families import tiny
    from tiny_llama import save_folder

    folder = save_folder(tiny("gpt2"), tmp_path / "gpt2")
    with pytest.raises(UnsupportedModel, match="choose runner torch"):
        auto.build_model(context(folder), "native").load()

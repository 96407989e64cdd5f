"""H03: mutated model files are read or refused with a typed error, in bounded time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import fuzzing
import pytest
from fuzz_models import sound_models

SECONDS = 180


def test_H03_sound_models_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, files in sound_models().items():
        assert fuzzing.use_files(files, tmp_path / name, with_weights=False) == set(), name


def test_H03_some_mutated_models_give_typed_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    errors = [fuzzing.check_seed(seed, tmp_path / "case", with_weights=False) for seed in range(60)]
    assert {"ModelFileDamaged", "InvalidPrompt", "UnsupportedModel"} & set().union(*errors)


@pytest.mark.verify
def test_H03_mutated_models_give_typed_errors_in_bounded_time_and_memory(tmp_path: Path) -> None:
    script = Path(fuzzing.__file__)
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "1000", str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS + 120,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"seed {lines[-1] if lines else None}: {done.stderr[-3000:]}"
    assert json.loads(lines[-1])["seeds"] > 500

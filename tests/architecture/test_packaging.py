"""What a wheel holds: everything that works in the editable install."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
TOP = {folder: package for package, folder in SETUPTOOLS["package-dir"].items()}


def package_of(folder: Path) -> str:
    top, *rest = folder.relative_to(ROOT).parts
    return ".".join([TOP[top], *rest])


def folders_with_code() -> set[Path]:
    return {file.parent for top in TOP for file in (ROOT / top).rglob("*.py")}


def test_every_folder_with_code_stands_once_in_the_sorted_packages_list() -> None:
    assert sorted(map(package_of, folders_with_code())) == SETUPTOOLS["packages"]


def test_every_folder_with_code_is_a_package() -> None:
    assert [folder for folder in folders_with_code() if not (folder / "__init__.py").exists()] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: a build in place would leave files behind that end up in the next wheel."""
    copy = tmp_path_factory.mktemp("source")
    for folder in TOP:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    (copy / "runners/native/prebuilt").mkdir(exist_ok=True)
    (copy / "runners/native/prebuilt/portable-0123.so").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "wheels", "."]
    done = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next((copy / "wheels").glob("*.whl"))


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    expected = {
        "/".join([*package_of(file.parent).split("."), file.name])
        for folder in folders_with_code()
        for file in folder.glob("*.py")
    }
    held = set(zipfile.ZipFile(wheel).namelist())
    assert expected - held == set()
    assert {name for name in held if name.endswith(".py")} - expected == set()


def test_the_wheel_holds_prebuilt_libraries_and_their_sources(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    assert "headrace/runners/native/prebuilt/portable-0123.so" in held
    assert "headrace/runners/native/csrc/engine.cpp" in held


def test_the_wheel_holds_types_licence_and_command(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    assert "headrace/py.typed" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert any(name.endswith("entry_points.txt") for name in held)

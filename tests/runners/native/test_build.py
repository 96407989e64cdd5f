"""Where the library comes from, and the whole suite on other builds of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.runners.native import build
from headrace.runners.native.build import PORTABLE, TARGETS, Target, choose_target, compile_library, ensure_library

SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SUITE = ("test_multiply.py", "test_sampling.py", "test_model.py", "test_damaged.py")
HERE = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "headrace" / "native"


@pytest.fixture
def tiny_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile in no time."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    return sources


def test_a_library_is_compiled_once_and_found_again(cache: Path, tiny_sources: Path) -> None:
    library = ensure_library(PORTABLE)
    assert library.parent == cache
    built = library.stat().st_mtime_ns
    assert ensure_library(PORTABLE) == library
    assert library.stat().st_mtime_ns == built
    assert list(cache.iterdir()) == [library]


def test_changed_sources_and_other_flags_have_libraries_of_their_own(cache: Path, tiny_sources: Path) -> None:
    names = {build.file_name(target) for target in TARGETS}
    names.add(build.file_name(Target("portable", frozenset(), ("-DOTHER",))))
    (tiny_sources / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    names.add(build.file_name(PORTABLE))
    assert len(names) == len(TARGETS) + 2


def test_a_prebuilt_library_comes_first(cache: Path, tiny_sources: Path) -> None:
    build.PREBUILT.mkdir()
    prebuilt = build.PREBUILT / build.file_name(PORTABLE)
    prebuilt.touch()
    assert ensure_library(PORTABLE) == prebuilt
    assert not cache.exists()


def test_what_a_wheel_ships_is_every_target_and_nothing_older(tiny_sources: Path) -> None:
    build.PREBUILT.mkdir()
    (build.PREBUILT / "portable-0123.so").touch()
    assert sorted(build.prebuild(build.PREBUILT)) == sorted(build.PREBUILT.iterdir())
    assert len(list(build.PREBUILT.iterdir())) == len(TARGETS)


def test_without_a_compiler_the_error_says_what_to_install_or_choose(
    cache: Path, tiny_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ConfigError, match=r"g\+\+.*install.*runner torch"):
        ensure_library(PORTABLE)


def test_what_the_compiler_says_is_told_and_nothing_is_left(cache: Path, tiny_sources: Path) -> None:
    (tiny_sources / "one.cpp").write_text("int one() { return nothing; }\n")
    with pytest.raises(ConfigError, match="nothing"):
        ensure_library(PORTABLE)
    assert list(cache.iterdir()) == []


def test_a_cpu_without_the_needed_flags_gets_the_portable_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_cpu_flags", lambda: frozenset({"sse2", "avx2"}))
    assert choose_target() is PORTABLE


def run_suite(cache: Path, **environment: str) -> None:
    """Run the other tests of this folder in a process that finds this build in its cache."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in SUITE),
    ]
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache.parents[1]), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=HERE.parents[2])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


@pytest.mark.verify
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizers are g++'s")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_suite_passes_under_address_and_undefined_behaviour_sanitizers(target: Target, cache: Path) -> None:
    if not target.needs <= build._cpu_flags():
        pytest.skip(f"this CPU can't run {target.name}")
    compile_library(target, cache / build.file_name(choose_target()), SANITIZE)
    preloaded = [  # the sanitizer looks for the functions that throw when it starts
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    run_suite(cache, LD_PRELOAD=" ".join(preloaded), ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="print_stacktrace=1")


@pytest.mark.verify
def test_the_suite_passes_on_the_portable_target(cache: Path) -> None:
    compile_library(PORTABLE, cache / build.file_name(choose_target()))
    run_suite(cache)


@pytest.mark.verify
@pytest.mark.skipif(shutil.which("g++") is None, reason="the sanitizer is g++'s")
def test_threads_share_work_without_races(tmp_path: Path) -> None:
    program = tmp_path / "team"
    command = ["g++", "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", "-Wno-psabi", f"-I{build.SOURCES}"]
    subprocess.run([*command, str(HERE / "team.cpp"), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

"""The native library: chosen for this machine's CPU, taken prebuilt or from the cache, else compiled once."""

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from headrace.core.errors import ConfigError
from headrace.core.model_files.cache import cache_dir

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt"
"""Libraries that a wheel ships, under the names that `file_name` gives; others are ignored."""

_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",  # a fused operation here and not there would make rows differ
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
    "-Wno-psabi",
)
_CPUINFO = Path("/proc/cpuinfo")


class Target(Struct, frozen=True):
    """One way to compile the sources."""

    name: str
    needs: frozenset[str]
    """CPU flags, as Linux names them."""
    flags: tuple[str, ...]


PORTABLE = Target("portable", frozenset(), ())
TARGETS = (
    Target("avx2", frozenset({"avx2", "fma", "f16c"}), ("-DHR_TARGET_AVX2", "-mavx2", "-mfma", "-mf16c")),
    PORTABLE,
)
"""The best first."""


def choose_target() -> Target:
    """Return the best target that this machine's CPU can run."""
    found = _cpu_flags()
    return next(target for target in TARGETS if target.needs <= found)


def can_have_library(target: Target) -> bool:
    """Tell whether the target's library is at hand, or a compiler that makes it."""
    name = file_name(target)
    return any((folder / name).is_file() for folder in _folders()) or _compiler() is not None


def ensure_library(target: Target) -> Path:
    """Return the target's library: prebuilt, cached, or compiled now, which takes some seconds.

    Raises ConfigError if there is no compiler or it fails.
    """
    name = file_name(target)
    for folder in _folders():
        if (folder / name).is_file():
            return folder / name
    library = cache_dir() / "native" / name
    compile_library(target, library)
    return library


def file_name(target: Target) -> str:
    """Name a target's library by all that it depends on: sources, flags and system."""
    digest = hashlib.sha256()
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(repr((_FLAGS, target.flags, sys.platform, platform.machine())).encode())
    return f"{target.name}-{digest.hexdigest()[:20]}.so"


def compile_library(target: Target, library: Path, extra_flags: Sequence[str] = ()) -> None:
    """Compile the sources, and put the result in place only when it is whole.

    extra_flags: after the usual ones, for compiling and linking. Raises ConfigError.
    """
    compiler = _compiler()
    if compiler is None:
        raise ConfigError(
            f"runner native is compiled on first use, and none of {', '.join(_COMPILERS)} is installed:"
            " install g++ (Debian: apt install g++), or choose runner torch"
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = [*_FLAGS, *target.flags, *extra_flags]
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as folder:
        sources = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(folder, source.stem + ".o") for source in sources]
        commands = [[compiler, *flags, "-c", str(s), "-o", str(o)] for s, o in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(thread_name_prefix="compiling") as pool:
            list(pool.map(_run, commands))
        built = Path(folder, library.name)
        _run([compiler, *flags, "-shared", *map(str, objects), "-o", str(built)])
        built.replace(library)


def prebuild(folder: Path) -> list[Path]:
    """Compile all targets into the folder that a wheel takes them from, in place of what it has. Raises ConfigError."""
    for old in folder.glob("*.so"):
        old.unlink()
    libraries = [folder / file_name(target) for target in TARGETS]
    for target, library in zip(TARGETS, libraries, strict=True):
        compile_library(target, library)
    return libraries


def _folders() -> tuple[Path, ...]:
    return PREBUILT, cache_dir() / "native"


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ConfigError(
            f"runner native can't be compiled here; choose runner torch, or repair the compiler."
            f" {' '.join(command)} said: {done.stderr[-1000:]}"
        )


def _cpu_flags() -> frozenset[str]:
    if platform.machine().lower() not in ("x86_64", "amd64") or not _CPUINFO.is_file():
        return frozenset()
    lines = _CPUINFO.read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), ":")
    return frozenset(flags.split(":", 1)[1].split())


if __name__ == "__main__":
    print(*prebuild(PREBUILT), sep="\n")

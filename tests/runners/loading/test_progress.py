import io
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from batches import load_torch
from native_models import load_native

from headrace.runners.loading import progress
from headrace.runners.loading.progress import with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    assert list(with_progress(iter("abc"), 3, "tensors")) == ["a", "b", "c"]
    return stream.getvalue()


def test_a_long_load_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.0)
    assert "Loading the model" in run(monkeypatch, Terminal())


@pytest.mark.parametrize(("load", "unit"), [(load_torch, "tensors"), (load_native, "layers")])
def test_both_runners_show_how_far_they_are(
    load: Callable[[Path], object], unit: str, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.0)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    load(llama_folder)
    assert f" {unit}/s" in terminal.getvalue()


def test_a_short_load_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 3600.0)
    assert run(monkeypatch, Terminal()).strip() == ""


def test_nothing_is_shown_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.0)
    assert run(monkeypatch, io.StringIO()) == ""


def test_no_thread_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    run(monkeypatch, Terminal())
    assert threading.active_count() == before

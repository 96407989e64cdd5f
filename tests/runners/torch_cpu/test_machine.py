"""What the machine offers, read from files of the kernel."""

from pathlib import Path

import pytest

from headrace.runners.torch_cpu import machine


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the kernel's files, instead of this machine's own."""
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    return tmp_path


def test_this_machine_has_memory_and_cores() -> None:
    assert 0 < machine.free_memory() <= machine.total_memory()
    assert machine.physical_cores() >= 1


def test_a_container_s_memory_limit_counts(kernel: Path) -> None:
    (kernel / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  4194304 kB\n")
    (kernel / "memory.max").write_text("1048576\n")
    (kernel / "memory.current").write_text("48576\n")
    assert machine.total_memory() == 1048576
    assert machine.free_memory() == 1_000_000


def test_without_a_limit_the_machine_s_memory_counts(kernel: Path) -> None:
    (kernel / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:  64 kB\n")
    (kernel / "memory.max").write_text("max\n")
    assert machine.free_memory() == 65536
    assert machine.total_memory() > 65536


def test_where_nobody_tells_half_of_the_memory_is_free(kernel: Path) -> None:
    assert machine.free_memory() == machine.total_memory() // 2


@pytest.mark.skipif(machine.sys.platform != "linux", reason="affinity is Linux's")
def test_threads_of_one_core_count_once(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu in range(4):
        (kernel / f"cpu{cpu}/topology").mkdir(parents=True)
        (kernel / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert machine.physical_cores() == 2
    (kernel / "cpu.max").write_text("150000 100000\n")
    assert machine.physical_cores() == 1
    (kernel / "cpu.max").write_text("max 100000\n")
    assert machine.physical_cores() == 2

"""What this machine offers: memory and physical cores, as far as a container or CPU affinity lets us use them."""

import os
import sys
from contextlib import suppress
from pathlib import Path

STEP_MS = 140.0
"""Steps with prompt chunks that streams beside them still bear (RunnerReady.step_ms)."""
_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_MEMINFO = Path("/proc/meminfo")


def total_memory() -> int:
    """Return the bytes of memory we may use at all."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _number(_CGROUP / "memory.max")
    return machine if limit is None else min(machine, limit)


def free_memory() -> int:
    """Return the bytes that can be taken now without driving anything else out; half of all where nobody tells."""
    total = total_memory()
    free = total // 2
    if _MEMINFO.is_file():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    used = _number(_CGROUP / "memory.current")
    return free if used is None else max(0, min(free, total - used))


def physical_cores() -> int:
    """Count the cores we may run on, hyper-threads of one core once: a second one adds nothing to matrix products."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    siblings = {_siblings(cpu) for cpu in cpus}
    return max(1, min(len(siblings), _cpu_quota() or len(siblings)))


def _siblings(cpu: int) -> str:
    with suppress(OSError):
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    return str(cpu)


def _cpu_quota() -> int | None:
    """Return the CPUs that a container's limit of run time amounts to; None without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    return None


def _number(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None

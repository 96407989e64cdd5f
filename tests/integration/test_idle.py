"""An engine that has nothing to do does nothing."""

import time
from pathlib import Path

import pytest
from commands import serving


def cpu_ms(pid):
    """Return the time that all threads of a process have spent on a CPU."""
    stats = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    assert stats
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e6


def check_idle(served, seconds, limit_ms):
    time.sleep(1)  # what the start left to do
    pids = [served.pid, *served.pids()]
    before = {pid: cpu_ms(pid) for pid in pids}
    time.sleep(seconds)
    used = {pid: cpu_ms(pid) - before[pid] for pid in pids}
    assert max(used.values()) <= limit_ms, used


@pytest.mark.parametrize(
    ("seconds", "limit_ms", "count"),
    [(1, 5, 1), pytest.param(10, 20, 1, marks=pytest.mark.verify), pytest.param(10, 20, 2, marks=pytest.mark.verify)],
)
def test_an_idle_server_uses_no_cpu(seconds, limit_ms, count):
    with serving("--api-server-count", str(count)) as served:
        served.metric("num_requests_running")
        check_idle(served, seconds, limit_ms)


@pytest.mark.verify
@pytest.mark.parametrize("runner", ["torch", "native"])
def test_an_idle_server_with_a_model_uses_no_cpu(runner, smollm2):
    options = (str(smollm2), "--runner", runner, "--tokenizer", "huggingface", "--max-model-len", "1024")
    with serving(*options, "--num-kv-blocks", "256") as served:
        served.metric("num_requests_running")
        check_idle(served, 10, 20)

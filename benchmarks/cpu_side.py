"""What each engine's side of `make bench-cpu` has in common. Standard library only: each runs under its own Python.

The driver writes a line of JSON to a side's standard input and reads a line from its standard output:

    {"prompts": [[1, 2, ...], ...], "max_tokens": 64}   -> {"prefill_s": .., "decode_tokens_per_s": .., "total_s": ..}
    {"about": true}                                     -> {"version": .., "peak_memory_mb": .., "start_s": ..}

A side loads its model before it reads the first line, and computes only while it owes an answer.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

MAX_MODEL_LEN = 256
"""Longest sequence that engines are told to expect."""
MAX_STREAMS = 64
POOL_TOKENS = MAX_STREAMS * MAX_MODEL_LEN
"""Tokens of K/V that every engine has room for."""
Figures = dict[str, float]


class Side(Protocol):
    """One engine with its model loaded."""

    version: str

    def generate(self, prompts: list[list[int]], max_tokens: int) -> Figures:
        """Run these prompts at once, greedily, ignoring the model's own end."""

    def peak_memory_mb(self) -> float:
        """Return the most memory that the engine has had."""

    def start_s(self) -> float:
        """Return how long it took from starting the engine to its first token, right after that."""


def figures(started: float, arrivals: Sequence[Sequence[float]]) -> Figures:
    """Make figures of the times at which each stream's tokens came.

    Decoding is measured while all streams decode: from the last one's first token to the first one's last.
    """
    prefilled = max(times[0] for times in arrivals)
    full_until = min(times[-1] for times in arrivals)
    made = {"prefill_s": prefilled - started, "total_s": max(times[-1] for times in arrivals) - started}
    if full_until > prefilled:
        decoded = sum(prefilled < came <= full_until for times in arrivals for came in times)
        made["decode_tokens_per_s"] = decoded / (full_until - prefilled)
    return made


def peak_memory_mb(pid: int | None = None) -> float:
    """Return the peaks of the resident memory of a process and all below it, added up, in 10^6 bytes.

    Pages that processes share count for each of them.
    """
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has just ended
    tree = {pid or os.getpid()}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(_high_water_kb(member) for member in tree) * 1024 / 1e6


def _high_water_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def age_s() -> float:
    """Return the seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def take_stdout() -> Any:
    """Return standard output for answers, and send whatever libraries print to standard error. Call it first."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(side: Side, answers: Any) -> None:
    """Answer until standard input ends; the first token that the side makes counts as its start."""
    side.generate([[1, 2, 3, 4, 5, 6, 7, 8]], 1)
    start_s = side.start_s()
    for line in sys.stdin:
        question: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        if "prompts" in question:
            answer = dict(side.generate(question["prompts"], question["max_tokens"]))
        else:
            answer = {"version": side.version, "peak_memory_mb": side.peak_memory_mb(), "start_s": start_s}
        print(json.dumps(answer), file=answers, flush=True)

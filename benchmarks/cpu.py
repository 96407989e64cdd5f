"""This engine beside vLLM, llama.cpp and transformers on this machine's CPU: `make bench-cpu`.

The same model, prompts and lengths, greedily: offline, then through each one's HTTP server. Contenders take turns, and
all but the one being measured are frozen. Prints tables and writes every figure to a JSON file.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cpu_contenders import CACHE, Contender, Places, contenders, tools_of
from cpu_process import Failed, Process, SideProcess
from cpu_report import goal_table, http_table, offline_table
from cpu_servers import Server
from overhead import cpu_model

from headrace.core.model_files.resolve import resolve_model

INPUT_LEN = 128
OUTPUT_LEN = 64
PREFILL_STREAMS = 8
CLIENTS = 32
TOKEN_IDS = range(1000, 40_000)
P = TypeVar("P", bound=Process)


def in_turns(items: Sequence[P], rounds: int) -> Iterator[tuple[int, P]]:
    """Yield each item once a round, another one first each time."""
    for number in range(rounds):
        for i in range(len(items)):
            yield number, items[(i + number) % len(items)]


def prompts_of(seed: str, streams: int) -> list[list[int]]:
    """Make prompts that no run before had, the same for all contenders."""
    draw = random.Random(seed)
    return [draw.choices(TOKEN_IDS, k=INPUT_LEN) for _ in range(streams)]


def measure_offline(sides: list[SideProcess], streams: Sequence[int], rounds: int, runs: list[dict[str, Any]]) -> None:
    """Add runs of prefill, and of decoding at each number of streams; contenders that fail take no further part."""
    workloads = [("prefill", PREFILL_STREAMS, 1), *((str(count), count, OUTPUT_LEN) for count in streams)]
    for column, count, max_tokens in workloads:
        for number, side in in_turns(list(sides), rounds):
            if side not in sides:
                continue
            try:
                made = side.ask(prompts=prompts_of(f"{column} {number}", count), max_tokens=max_tokens)
            except Failed as error:
                print(error, flush=True)
                sides.remove(side)
                continue
            lengths = {"streams": count, "input_len": INPUT_LEN, "max_tokens": max_tokens}
            runs.append({"contender": side.name, "column": column, "round": number, **lengths, **made})
            shown = "  ".join(f"{key} {value:.4g}" for key, value in made.items())
            print(f"{column:>7} {number}  {side.name:20} {shown}", flush=True)


def measure_servers(servers: list[Server], rounds: int, num_prompts: int, runs: list[dict[str, Any]]) -> None:
    """Add runs of loads on servers."""
    for number, server in in_turns(list(servers), rounds):
        if server not in servers:
            continue
        try:
            made = server.load(CLIENTS, num_prompts, INPUT_LEN, seed=1 + number)
        except Failed as error:
            print(error, flush=True)
            servers.remove(server)
            continue
        about = {
            "contender": server.name,
            "round": number,
            "start_s": server.start_s,
            "peak_memory_mb": server.peak_memory_mb(),
        }
        runs.append({**about, **made})
        print(f"   http {number}  {server.name:20} {made['output_tokens_per_s']:.1f} tokens/s", flush=True)


def start(
    chosen: Sequence[Contender], make: Callable[[Contender], P], warm: Callable[[P], Any], stack: contextlib.ExitStack
) -> list[P]:
    """Start contenders one after the other, to be ended by the stack; who can't be started is named and left out."""
    started: list[P] = []
    for contender in chosen:
        print(f"starting {contender.name}", flush=True)
        try:
            process = make(contender)
            stack.callback(process.close)
            warm(process)
            started.append(process)
        except (Failed, OSError) as error:
            print(error, flush=True)
    return started


def offline(chosen: Sequence[Contender], scratch: Path, given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Run the offline part."""

    def make(contender: Contender) -> SideProcess:
        log = scratch / f"{contender.name}.log"
        return SideProcess(contender.name, contender.side, contender.environment, log)

    with contextlib.ExitStack() as stack:
        sides = start(chosen, make, lambda side: side.ask(prompts=prompts_of("warm", 16), max_tokens=8), stack)
        measure_offline(sides, given.streams, given.rounds, results["offline"])
        results["about"]["contenders"] = {side.name: side.ask(about=True) for side in sides}


def through_http(
    chosen: Sequence[Contender], scratch: Path, given: argparse.Namespace, results: dict[str, Any]
) -> None:
    """Run the part through servers."""

    def make(contender: Contender) -> Server:
        return Server(contender, scratch / f"{contender.name}-server.log", OUTPUT_LEN)

    with contextlib.ExitStack() as stack:
        servers = start(chosen, make, lambda server: server.load(4, 4, INPUT_LEN, seed=0), stack)
        measure_servers(servers, given.rounds, given.requests, results["http"])


def about_this() -> dict[str, Any]:
    """Tell date, machine and commit."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": told.stdout.strip(),
        "load_before": os.getloadavg()[0],
        "clients": CLIENTS,
    }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a few workloads, to see that it works")
    parser.add_argument("--only", nargs="+", help="contenders, by name or by how names begin")
    parser.add_argument("--parts", nargs="+", choices=["offline", "http"], default=["offline", "http"])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="GGUF file or catalogue name")
    parser.add_argument("--files", type=Path, default=CACHE / "files/smollm2-135m-instruct", help="see the Makefile")
    parser.add_argument("--peers", type=Path, default=CACHE, help="folder of the peers' virtual environments")
    parser.add_argument("--streams", nargs="+", type=int, help="how many at once (1 4 8 16 32 64)")
    parser.add_argument("--rounds", type=int, help="turns of each contender at each workload (5)")
    parser.add_argument("--requests", type=int, help="requests of a load on a server (128)")
    parser.add_argument("--output", type=Path, default=Path("build/bench-cpu.json"))
    given = parser.parse_args()
    given.streams = given.streams or ([1, 16, 32] if given.quick else [1, 4, 8, 16, 32, 64])
    given.rounds = given.rounds or (1 if given.quick else 5)
    given.requests = given.requests or (CLIENTS if given.quick else 4 * CLIENTS)
    return given


def main() -> None:
    """Measure, print, write."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and not before contenders are ended
    scratch = given.output.parent / "bench-cpu"
    scratch.mkdir(parents=True, exist_ok=True)
    about = about_this()
    model, tools = str(resolve_model(given.model)), tools_of(given.peers)
    places = Places(model, given.files, given.peers / "vllm", tools, scratch.resolve())
    everyone = contenders(places, about["cores"])
    chosen = [one for one in everyone if not given.only or one.name.startswith(tuple(given.only))]
    results: dict[str, Any] = {"about": about, "offline": [], "http": []}
    try:
        for part, measure in (("offline", offline), ("http", through_http)):
            if part in given.parts:
                measure(chosen, scratch, given, results)
    finally:  # what was measured until then
        for show in (offline_table, http_table, goal_table):
            print(show(results), flush=True)
        given.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""The processes of `make bench-cpu`: one contender each, frozen whenever it isn't the one being measured."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpu_side import peak_memory_mb

STOP_S = 30.0
START_S = 900.0
"""vLLM compiles its model the first time it starts."""


class Failed(Exception):
    """A contender ended or gave no usable answer; says where its log is."""


class Process:
    """A command in a process group of its own, whose standard error goes to a log."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self.has_answers else file,
                stderr=file,
                text=True,
                env={**os.environ, **environment},
                process_group=0,
            )

    has_answers = False
    """Whether its standard output is read."""

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let it compute in here, and only here."""
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGSTOP)

    def peak_memory_mb(self) -> float:
        """Return the peak of all its processes."""
        return peak_memory_mb(self._process.pid)

    def failed(self, doing: str) -> Failed:
        """Make the error of a contender that has ended or is of no use."""
        return Failed(f"{self.name} failed ({doing}), exit code {self._process.poll()}; see {self._log}")

    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End it and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class SideProcess(Process):
    """A contender's side offline; see cpu_side.py for what it can be asked."""

    has_answers = True

    def ask(self, **question: Any) -> Any:
        """Let it do something and wait for its answer. Raises Failed."""
        assert self._process.stdin and self._process.stdout
        with self.awake():
            try:
                print(json.dumps(question), file=self._process.stdin, flush=True)
                return json.loads(self._process.stdout.readline())
            except (OSError, json.JSONDecodeError):
                raise self.failed(f"asked for {', '.join(question)}") from None


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_until(process: Process, is_ready: Any, poll_s: float = 0.02) -> None:
    """Ask until it is ready. Raises Failed."""
    deadline = time.monotonic() + START_S
    while not is_ready():
        if process.has_ended() or time.monotonic() > deadline:
            raise process.failed("starting")
        time.sleep(poll_s)

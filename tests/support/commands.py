"""`headrace serve` as a process of its own, and clients that read its streams."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from engines import HANG_GUARD_S

from headrace.core.text.symbols import FIRST
from headrace.runners.kvhash import reference

HEADRACE = str(Path(sys.executable).with_name("headrace"))
KVHASH = ("--runner", "kvhash", "--tokenizer", "symbols", "--max-model-len", "120000", "--num-kv-blocks", "8192")


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and wasn't waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], Any], limit_s: float = HANG_GUARD_S) -> None:
    """Wait until another process has made something true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Command:
    """A running `headrace serve`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid
        self.address = ""

    def wait_serving(self) -> "Command":
        """Wait until it can be asked."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"(http|unix):\S+", line)
        assert found, f"it said {line!r}"
        self.address = found[0]
        return self

    def pids(self, role: str | None = None) -> list[int]:
        """Return its child processes, of one role or all."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children if role is None or self._role(pid) == role]

    def _role(self, pid: str) -> str:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return next((word.rsplit(".", 1)[1] for word in words if word.startswith("headrace.processes.")), "")

    def kill(self, role: str) -> None:
        """End a child at once."""
        os.kill(self.pids(role)[0], signal.SIGKILL)

    def metric(self, name: str, **labels: str) -> float:
        """Read one figure of /metrics."""
        import urllib.request

        with urllib.request.urlopen(f"{self.address}/metrics", timeout=HANG_GUARD_S) as answer:
            page = answer.read().decode()
        found = [line for line in page.splitlines() if line.startswith(f"headrace:{name}{{")]
        line = next(line for line in found if all(f'{key}="{value}"' in line for key, value in labels.items()))
        return float(line.rsplit(" ", 1)[1])

    def is_idle(self) -> bool:
        """Tell whether nothing is left of any request."""
        return not any(self.metric(name) for name in ("num_requests_running", "num_requests_waiting")) and not (
            self.metric("kv_cache_usage_perc")
        )

    def folders(self) -> list[Path]:
        """Return its folders of sockets."""
        return list(Path(tempfile.gettempdir()).glob(f"headrace-{self.pid}-*"))


@contextlib.contextmanager
def serving(*options: str, waits: bool = True) -> Iterator[Command]:
    """Run `headrace serve` on kvhash and a free port; the last of several same options counts.

    At the end, however it came, no process and no folder may be left.
    """
    command = [HEADRACE, "serve", *KVHASH, *([] if "--port" in options else ["--port", "0"]), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        served = Command(process)
        try:
            yield served.wait_serving() if waits else served
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(HANG_GUARD_S)
        finally:
            process.kill()
    assert not served.folders()


class Reading:
    """A completion being streamed: its text so far, and how it ended."""

    def __init__(self, prompt: str | list[int], max_tokens: int) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.text = ""
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.has_begun = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def read(self, address: str) -> None:
        """Stream it to its end, an error of the server or of the connection."""
        body = {
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        timeout = aiohttp.ClientTimeout(HANG_GUARD_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{address}/v1/completions", json=body) as answer,
            ):
                async for line in answer.content:
                    self._take(line.removeprefix(b"data: ").strip())
        except aiohttp.ClientError as error:
            self.error = repr(error)
        finally:
            self.has_begun.set()

    def _take(self, event: bytes) -> None:
        if event in (b"", b"[DONE]"):
            return
        said = json.loads(event)
        if "error" in said:
            self.error = said["error"]["message"]
            return
        (choice,) = said["choices"]
        self.text += choice["text"]
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.has_begun.set()

    def is_whole(self) -> bool:
        """Tell whether it ended as if nothing had happened."""
        expected = "".join(chr(FIRST + token_id) for token_id in reference(self.prompt, self.max_tokens))
        return (self.text, self.finish_reason, self.error) == (expected, "length", None)


async def start(address: str, *readings: Reading) -> None:
    """Begin to read streams, and wait until all have text."""
    for reading in readings:
        reading.task = asyncio.create_task(reading.read(address))
    for reading in readings:
        await reading.has_begun.wait()
        assert reading.error is None, reading.error


async def finish(*readings: Reading) -> None:
    """Read streams to their ends."""
    await asyncio.gather(*(reading.task for reading in readings if reading.task))

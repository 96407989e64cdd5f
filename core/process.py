"""Processes of an engine: how the launcher starts and watches a child, and how a child reports and notices its end.

A child is a fresh interpreter running `python -m headrace.processes.<role>`, so that the user's own main module is
never imported. Its standard input is the launch pipe: the spec, later the facts, and end-of-file when the launcher has
gone or wants it to stop. The ready pipe goes the other way: one Ready or Failed, and end-of-file when the child has
died.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.core.config import Config
from headrace.core.errors import EngineClosed, ErrorInfo, HeadraceError, describe, restore
from headrace.core.messages import RunnerReady

FORCE_EXIT_S = 3.0
"""How long a child that was told to stop may tidy up before it leaves by force."""
STOP_S = 5.0
"""How long the launcher waits for that before it kills."""
_LENGTH = struct.Struct("<I")
_CHUNK = 65536


class Spec(Struct, frozen=True, tag=True):
    """launcher -> child, first on the launch pipe: what to be."""

    config: Config
    model: str | None
    directory: str
    """Socket files of this epoch; empty for server processes, which are told of each."""
    log_level: int


class Facts(Struct, frozen=True, tag=True):
    """launcher -> child, once the runner is loaded."""

    facts: RunnerReady


class Serve(Struct, frozen=True, tag=True):
    """launcher -> server process, behind its spec."""

    frontend: int
    """Number of its frontend. It is never used again: answers to a dead one may still be on the way."""
    listener: int
    """File descriptor of the bound socket that all server processes share."""
    root: str
    """What the model is, for those who ask for its name."""
    options: bytes
    """ServerOptions as msgpack; only the server reads them."""


class Epoch(Struct, frozen=True, tag=True):
    """launcher -> server process: the engine runs, its sockets are in this folder."""

    directory: str
    facts: RunnerReady


class Down(Struct, frozen=True, tag=True):
    """launcher -> server process: the engine has died; it may come back."""


class Closed(Struct, frozen=True, tag=True):
    """launcher -> server process: the engine has gone for good."""

    reason: str


class Leave(Struct, frozen=True, tag=True):
    """launcher -> server process: take no more requests, and end when the open ones have."""

    is_hurried: bool
    """Abort the open ones."""


ToChild = Spec | Facts | Serve | Epoch | Down | Closed | Leave


class Ready(Struct, frozen=True, tag=True):
    """child -> launcher: it runs; `facts` from the one that holds the runner."""

    facts: RunnerReady | None = None


class Failed(Struct, frozen=True, tag=True):
    """child -> launcher: it can't run."""

    error: ErrorInfo


def socket_path(directory: str | Path, name: str) -> Path:
    """Return the socket file of an actor's inbox: input, core, output, worker, steps, or frontend-<number>."""
    return Path(directory) / name


# --- the launcher's side ----------------------------------------------------------------------------------------------


class Child:
    """One process of an engine. Owner: the launcher."""

    def __init__(self, role: str, process: "subprocess.Popen[bytes]", pipe: FileIO) -> None:
        self.role = role
        self._process = process
        self._pipe = pipe
        self._ready = asyncio.StreamReader()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._read)  # a transport could not be closed once the loop is

    @classmethod
    def spawn(cls, role: str, spec: Spec, pass_fds: Sequence[int] = ()) -> "Child":
        """Start a process and send it its spec; it inherits `pass_fds`, under their numbers.

        It doesn't import from the working directory.
        """
        read_end, write_end = os.pipe()
        pipe = FileIO(read_end)
        try:
            with _signals_blocked():
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", f"headrace.processes.{role}", str(write_end)],
                    stdin=subprocess.PIPE,
                    pass_fds=(write_end, *pass_fds),
                )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(write_end)
        child = cls(role, process, pipe)
        child.tell(spec)
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def tell(self, message: ToChild) -> None:
        """Send a message down the launch pipe; a child that has died is noticed elsewhere."""
        assert self._process.stdin is not None
        frame = msgspec.msgpack.encode(message)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(_LENGTH.pack(len(frame)) + frame)
            self._process.stdin.flush()

    def _read(self) -> None:
        if said := self._pipe.read(_CHUNK):
            self._ready.feed_data(said)
        else:
            self._loop.remove_reader(self._pipe)
            self._ready.feed_eof()

    async def ready(self) -> RunnerReady | None:
        """Wait until it runs. Raises what it failed with, or EngineClosed if it died without a word."""
        said = await self._said()
        if said is None:
            raise EngineClosed(f"the {self.role} process died while it started ({self._how()})")
        if isinstance(said, Failed):
            raise restore(said.error)
        return said.facts

    async def died(self) -> str:
        """Wait until the process has ended; returns how, and what it said about it."""
        said = await self._said()
        await self._ready.read()
        why = f": {said.error.message}" if isinstance(said, Failed) else ""
        return f"the {self.role} process ended ({self._how()}){why}"

    async def _said(self) -> "Ready | Failed | None":
        """Wait for the next report; None: there is no more."""
        try:
            (length,) = _LENGTH.unpack(await self._ready.readexactly(_LENGTH.size))
            return msgspec.msgpack.decode(await self._ready.readexactly(length), type=Ready | Failed)
        except asyncio.IncompleteReadError:
            return None

    def _how(self) -> str:
        try:
            code = self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    def ask_to_stop(self) -> None:
        """Close the launch pipe: the child tidies up and leaves."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once, and reap it; also when its loop has closed. What waits for it is told that it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.ask_to_stop()
        if not self._pipe.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._pipe)
                self._ready.feed_eof()
            self._pipe.close()

    async def stop(self) -> None:
        """Ask it to stop, and kill it if it doesn't in time."""
        self.ask_to_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._ready.read()
        self.kill()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Have a process that is started here never see SIGINT and SIGTERM.

    Supervisors tell every process of a service: what is to become of a child is its launcher's decision.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- the child's side -------------------------------------------------------------------------------------------------


class Parent:
    """The launcher, as a child sees it: the pipes at both ends of its life."""

    def __init__(self, ready_fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self.stopping = asyncio.Event()
        """Set when the launcher has gone or wants this process to stop."""
        self._ready_fd = ready_fd
        self._loop = loop
        self.told: asyncio.Queue[ToChild] = asyncio.Queue()
        """What came down the launch pipe."""
        threading.Thread(target=self._watch, name="launch pipe", daemon=True).start()

    async def facts(self) -> RunnerReady:
        """Wait for the facts that the runner's process found."""
        told = await self.told.get()
        assert isinstance(told, Facts)
        return told.facts

    def ready(self, facts: RunnerReady | None = None) -> None:
        """Report that this process runs."""
        self._report(Ready(facts))

    def fail(self, error: BaseException) -> None:
        """Report that it can't. What wasn't raised on purpose is the end of an engine, not of a request."""
        known = error if isinstance(error, HeadraceError) else EngineClosed(f"{type(error).__name__}: {error}")
        self._report(Failed(describe(known)))

    def _report(self, message: Ready | Failed) -> None:
        frame = msgspec.msgpack.encode(message)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._ready_fd, _LENGTH.pack(len(frame)) + frame)

    def _watch(self) -> None:
        """Read the launch pipe to its end, then have this process leave, by force at a deadline."""
        decoder = msgspec.msgpack.Decoder(ToChild)
        with os.fdopen(0, "rb", closefd=False) as pipe:
            while len(header := pipe.read(_LENGTH.size)) == _LENGTH.size:
                (length,) = _LENGTH.unpack(header)
                if len(frame := pipe.read(length)) < length:
                    break  # the launcher died while it wrote
                self._loop.call_soon_threadsafe(self.told.put_nowait, decoder.decode(frame))
        threading.Timer(FORCE_EXIT_S, os._exit, (1,)).start()
        with contextlib.suppress(RuntimeError):  # the loop has closed: this process is leaving already
            self._loop.call_soon_threadsafe(self.stopping.set)


Main = Callable[[Parent, Spec], Awaitable[None]]
"""Runs a child until it is cancelled, once the launcher wants it to stop."""


SWITCH_INTERVAL_S = 0.0005
"""How long a thread of a link waits for the GIL of a busy loop at most; Python's 5 ms would be longer than a step."""


def run_child(main: Main) -> None:
    """Run a child's main to the end of its process; the argument vector names the ready pipe."""
    import uvloop

    threading.excepthook = _leave
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    code = uvloop.run(_run(main, int(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no atexit hook or foreign thread may hold up the end


def _leave(failure: threading.ExceptHookArgs) -> None:
    """End the process with a thread that fails: without its links or runner it would only hang."""
    thread = failure.thread.name if failure.thread else "a thread"
    logging.getLogger("headrace").critical("%s failed", thread, exc_info=failure.exc_value)
    os._exit(1)


async def _run(main: Main, ready_fd: int) -> int:
    parent = Parent(ready_fd, asyncio.get_running_loop())
    try:
        running = asyncio.create_task(_serve(main, parent))
        stopping = asyncio.create_task(parent.stopping.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        await running
    except asyncio.CancelledError:
        return 0
    except BaseException as error:
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(cause, HeadraceError):
            logging.getLogger("headrace").error("%s failed", main.__module__, exc_info=cause)
        parent.fail(cause)
        return 1
    return 0


async def _serve(main: Main, parent: Parent) -> None:
    spec = await parent.told.get()
    assert isinstance(spec, Spec)
    logging.basicConfig(level=spec.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        await main(parent, spec)
    finally:
        if parent.stopping.is_set() and spec.directory:
            _remove(Path(spec.directory))


def _remove(directory: Path) -> None:
    """Remove the sockets, and the folder that the launcher made for them: it may have been killed."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directory.parent.rmdir()

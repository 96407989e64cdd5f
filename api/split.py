"""Engines in several processes: the launcher starts, watches and restarts input, core, output and worker."""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import zmq

from headrace.core.config import Config
from headrace.core.errors import EngineClosed
from headrace.core.links import Inbound, Outbound, check_path
from headrace.core.messages import FrontendGone, RunnerReady, ToFrontend, ToInput
from headrace.core.process import Child, Facts, Spec, socket_path
from headrace.frontend import Frontend
from headrace.launch import Builder

log = logging.getLogger("headrace")

PREFIX = "headrace-"
"""Of the private folders in the temporary directory; the launcher's process id follows."""
RESTART_PAUSE_S = 0.1
"""Before the second restart; doubled each time."""


class Port(Protocol):
    """A frontend, as the launcher sees it."""

    def connect(self, directory: Path, facts: RunnerReady) -> None:
        """Use the engine whose sockets are in this folder from now on."""

    def disconnect(self) -> None:
        """The engine has died; it may come back."""

    def close(self, reason: str) -> None:
        """The engine has gone for good."""


class LocalPort:
    """A frontend in the launcher's own process."""

    def __init__(self, frontend: Frontend, context: "zmq.Context[Any]") -> None:
        self._frontend = frontend
        self._context = context
        self._links: list[Inbound[ToFrontend] | Outbound[ToInput]] = []

    def connect(self, directory: Path, facts: RunnerReady) -> None:
        """Link the frontend to the engine's sockets."""
        frontend = self._frontend
        path = socket_path(directory, f"frontend-{frontend.number}")
        inbound = Inbound(self._context, path, ToFrontend, frontend.inbox.buffer.extend)
        outbound: Outbound[ToInput] = Outbound(self._context, socket_path(directory, "input"))
        self._links = [inbound, outbound]
        frontend.connect(outbound.send)

    def disconnect(self) -> None:
        """Close the links."""
        self._frontend.disconnect()
        for link in self._links:
            link.close()
        self._links = []

    def close(self, reason: str) -> None:
        """End what is open."""
        self._frontend.close(reason)


class Launcher:
    """Owner of an engine's processes, and of the folder with their sockets.

    If one dies, all start again under a new epoch, at most engine.max_restarts times; frontends go on with what they
    have in their journals.
    """

    def __init__(self, config: Config, model: Path | None, ports: Sequence[Port], context: "zmq.Context[Any]") -> None:
        self._builder = Builder(config, model)  # whatever is wrong with the plugins is said before a process starts
        self._config = config
        self._model = model
        self._ports = ports
        self._context = context
        self._epoch = 0
        self._directory: Path | None = None
        self._to_input: Outbound[ToInput] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.children: list[Child] = []

    async def start(self) -> RunnerReady:
        """Start the processes and connect the frontends."""
        self._directory = _make_directory()
        try:
            facts = await self._start_epoch()
        except BaseException:
            self.release()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="headrace-supervisor")
        return facts

    def frontend_gone(self, number: int) -> None:
        """Have the requests of a frontend that died aborted."""
        if self._to_input is not None:
            self._to_input.send(FrontendGone(number))

    async def wait(self) -> None:
        """Wait until the engine has gone for good."""
        if self._supervisor is not None:
            await asyncio.wait([self._supervisor])

    async def close(self) -> None:
        """Stop all processes, by force at a deadline, and remove the sockets; idempotent."""
        self._disconnect()
        children, self.children = self.children, []  # those that the supervisor does not kill when it is cancelled
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await asyncio.gather(*(child.stop() for child in children))
        self.release()

    def release(self) -> None:
        """Kill all processes and remove the sockets; also when the loop has closed. Idempotent."""
        self._kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- one epoch ---

    async def _start_epoch(self) -> RunnerReady:
        assert self._directory is not None
        self._epoch += 1
        directory = self._directory / str(self._epoch)
        directory.mkdir(mode=0o700)
        check_path(socket_path(directory, "frontend-000"))
        model = None if self._model is None else str(self._model)
        spec = Spec(self._config, model, str(directory), log.getEffectiveLevel())
        roles = ["core", "input", "output"] if self._builder.runs_in_core() else ["worker", "core", "input", "output"]
        for role in roles:
            self.children.append(Child.spawn(role, spec))
        facts = await self._all_ready()
        self._to_input = Outbound(self._context, socket_path(directory, "input"))
        for port in self._ports:
            port.connect(directory, facts)
        return facts

    async def _all_ready(self) -> RunnerReady:
        """Wait for the one with the runner, then for those that need its facts. The first failure is raised."""
        holder, *others = self.children
        failing = asyncio.create_task(_first_failure([child.ready() for child in others]))
        loading = asyncio.create_task(holder.ready())
        try:
            await asyncio.wait([loading, failing], return_when=asyncio.FIRST_COMPLETED)
            if failing.done() and not loading.done():
                await failing
            facts = await loading
            assert facts is not None
            for child in others:
                child.tell(Facts(facts))
            await failing
            return facts
        finally:
            loading.cancel()
            failing.cancel()

    def _disconnect(self) -> None:
        for port in self._ports:
            port.disconnect()
        if self._to_input is not None:
            self._to_input.close()
            self._to_input = None

    # --- supervision ---

    async def _supervise(self) -> None:
        """Start all anew when one has died, until the restarts run out; then every request ends with an error."""
        try:
            self._give_up(await self._restart())
        finally:
            self.release()  # the processes don't outlive the loop that watches them

    async def _restart(self) -> str:
        """Start all anew whenever one has died; returns why that comes to an end."""
        limit, pause = self._config.engine.max_restarts, 0.0
        for left in range(limit, -1, -1):
            cause = await self._first_death()
            log.error("%s; %d restarts left", cause, left)
            self._kill()
            if left:
                await asyncio.sleep(pause)
                pause = 2 * pause or RESTART_PAUSE_S
                try:
                    with contextlib.suppress(EngineClosed):  # one died again while it started: that is the next death
                        await self._start_epoch()
                except Exception as error:  # whatever it is, requests get an answer
                    return f"{cause}, and the engine can't start again: {type(error).__name__}: {error}"
        return f"{cause}, and engine.max_restarts ({limit}) is used up"

    def _kill(self) -> None:
        """End what is left of an epoch."""
        self._disconnect()
        for child in self.children:
            child.kill()
        self.children = []

    def _give_up(self, reason: str) -> None:
        log.error("the engine ends: %s", reason)
        for port in self._ports:
            port.close(reason)

    async def _first_death(self) -> str:
        watching = [asyncio.create_task(child.died()) for child in self.children]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            return min(done, key=watching.index).result()
        finally:
            for task in watching:
                task.cancel()


class Split:
    """Placement of an engine in processes of its own, with its one frontend here."""

    number = 0

    def __init__(self, config: Config, model: Path | None) -> None:
        self._config = config
        self._model = model
        self._context: zmq.Context[Any] = zmq.Context()
        self._launcher: Launcher | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, frontend: Frontend) -> RunnerReady:
        """Start the processes and connect the frontend."""
        self._launcher = Launcher(self._config, self._model, [LocalPort(frontend, self._context)], self._context)
        facts = await self._launcher.start()
        self._serving = asyncio.create_task(serve_frontend(frontend), name="headrace-frontend")
        return facts

    def pids(self) -> dict[str, int]:
        """Return the process ids by role."""
        return {child.role: child.pid for child in self._launcher.children} if self._launcher else {}

    async def close(self) -> None:
        """Stop all processes; idempotent."""
        if self._launcher is not None:
            await self._launcher.close()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self._context.destroy(linger=0)

    def release(self) -> None:
        """Kill all processes and close the links: the loop has ended; idempotent."""
        if self._launcher is not None:
            self._launcher.release()
        self._context.destroy(linger=0)


async def serve_frontend(frontend: Frontend) -> None:
    """Hand out what comes back, until cancelled."""
    try:
        await frontend.inbox.serve(frontend.handle)
    except Exception as error:
        log.exception("the frontend failed")
        frontend.close(f"the frontend failed: {type(error).__name__}: {error}")


async def _first_failure(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _make_directory() -> Path:
    """Make a private folder for sockets, and sweep those whose launcher has died."""
    parent = Path(tempfile.gettempdir())
    for stale in parent.glob(f"{PREFIX}*"):
        if _is_stale(stale):
            shutil.rmtree(stale, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _is_stale(folder: Path) -> bool:
    pid = folder.name.removeprefix(PREFIX).split("-")[0]
    try:
        if not pid.isdigit() or folder.stat().st_uid != os.getuid():
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # swept by another engine, or another user's process
        return False
    return False

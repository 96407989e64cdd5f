"""Engines in several processes: the launcher starts, watches and restarts input, core, output and worker."""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import zmq

from headrace.core.config import Config
from headrace.core.errors import EngineClosed, HeadraceError
from headrace.core.links import Inbound, Outbound, check_path
from headrace.core.messages import RunnerReady, ToFrontend, ToInput
from headrace.core.process import Child, Facts, Spec, socket_path
from headrace.frontend import Frontend
from headrace.launch import Builder

log = logging.getLogger("headrace")

PREFIX = "headrace-"
"""Of the private folders in the temporary directory; the launcher's process id follows."""
RESTART_PAUSE_S = 0.1
"""Before the second and later restarts, doubled each time."""


class Split:
    """Owner of an engine's processes, and of the folder with their sockets.

    If one dies, all start again under a new epoch, at most engine.max_restarts times; the frontend goes on with what it
    has in its journal.
    """

    def __init__(self, config: Config, model: Path | None) -> None:
        self._builder = Builder(config, model)  # whatever is wrong with the plugins is said before a process starts
        self._config = config
        self._model = model
        self._epoch = 0
        self._directory: Path | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._children: list[Child] = []
        self._links: list[Inbound[ToFrontend] | Outbound[ToInput]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def start(self, frontend: Frontend) -> RunnerReady:
        """Start the processes and connect the frontend."""
        self._directory = _make_directory()
        try:
            facts = await self._start_epoch(frontend)
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(frontend.inbox.serve(frontend.handle), name="headrace-frontend"),
            asyncio.create_task(self._supervise(frontend), name="headrace-supervisor"),
        ]
        return facts

    def pids(self) -> dict[str, int]:
        """Return the process ids by role."""
        return {child.role: child.pid for child in self._children}

    async def close(self) -> None:
        """Stop all processes, by force at a deadline, and remove the sockets; idempotent."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._disconnect()
        children, self._children = self._children, []
        await asyncio.gather(*(child.stop() for child in children))
        self._context.destroy(linger=0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # --- one epoch ---

    async def _start_epoch(self, frontend: Frontend) -> RunnerReady:
        assert self._directory is not None
        self._epoch += 1
        directory = self._directory / str(self._epoch)
        directory.mkdir(mode=0o700)
        check_path(socket_path(directory, "frontend-00"))
        model = None if self._model is None else str(self._model)
        spec = Spec(self._config, model, str(directory), log.getEffectiveLevel())
        roles = ["core", "input", "output"] if self._builder.runs_in_core() else ["worker", "core", "input", "output"]
        for role in roles:
            self._children.append(await Child.spawn(role, spec))
        facts = await self._all_ready()
        self._connect(frontend, directory)
        return facts

    async def _all_ready(self) -> RunnerReady:
        """Wait for the one with the runner, then for those that need its facts. The first failure is raised."""
        holder, *others = self._children
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

    def _connect(self, frontend: Frontend, directory: Path) -> None:
        inbound: Inbound[ToFrontend] = Inbound(
            self._context,
            socket_path(directory, f"frontend-{frontend.number}"),
            ToFrontend,
            frontend.inbox.buffer.extend,
        )
        outbound: Outbound[ToInput] = Outbound(self._context, socket_path(directory, "input"))
        self._links = [inbound, outbound]
        frontend.connect(outbound.send)

    def _disconnect(self) -> None:
        for link in self._links:
            link.close()
        self._links = []

    # --- supervision ---

    async def _supervise(self, frontend: Frontend) -> None:
        """Start all anew when one has died, until the restarts run out; then every request ends with an error."""
        left, pause = self._config.engine.max_restarts, 0.0
        while True:
            cause = await self._first_death()
            log.error("%s; %d restarts left", cause, left)
            frontend.disconnect()
            self._disconnect()
            for child in self._children:
                child.kill()
            self._children = []
            if not left:
                frontend.close(f"{cause}, and engine.max_restarts ({self._config.engine.max_restarts}) is used up")
                return
            left -= 1
            await asyncio.sleep(pause)
            pause = 2 * pause or RESTART_PAUSE_S
            with contextlib.suppress(EngineClosed):  # one died again while it started: that counts as the next death
                await self._restart(frontend)

    async def _restart(self, frontend: Frontend) -> None:
        try:
            await self._start_epoch(frontend)
        except EngineClosed:
            raise
        except HeadraceError as error:
            frontend.close(f"the engine can't start again: {error}")
            raise asyncio.CancelledError from error

    async def _first_death(self) -> str:
        watching = [asyncio.create_task(child.died()) for child in self._children]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            return min(done, key=watching.index).result()
        finally:
            for task in watching:
                task.cancel()


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
    if not pid.isdigit() or folder.stat().st_uid != os.getuid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False

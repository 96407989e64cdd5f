"""Several server processes on one engine. This process launches, watches, and tells them when to leave; no more."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec.structs import replace

from headrace.core.config import Config
from headrace.core.errors import ConfigError, EngineClosed
from headrace.core.messages import RunnerReady
from headrace.core.process import Child, Closed, Down, Epoch, Leave, Serve, Spec
from headrace.launch import find_model
from headrace.server.listen import address_of
from headrace.server.options import ServerOptions
from headrace.server.run import FAILED, Stop
from headrace.split import Launcher

log = logging.getLogger("headrace")

LEAVE_S = 10.0
"""Beyond the time for open requests, how long a server process may take to leave before it is killed."""


class ServerPort:
    """A place for a server process. If the one in it dies, another one takes the place, with a frontend of its own.

    on_gone: called with the frontend's number when a process has ended, however it did.
    """

    def __init__(self, spec: Spec, serve: Serve, numbers: Iterator[int], on_gone: Callable[[int], None]) -> None:
        self.is_ready = asyncio.Event()
        self._spec = spec
        self._serve = serve
        self._numbers = numbers
        self._on_gone = on_gone
        self._engine: Epoch | Down | Closed = Down()
        """What a server process has to know of the engine."""
        self._is_leaving = False
        self._child: Child | None = None

    def connect(self, directory: Path, facts: RunnerReady) -> None:
        """Have it use the engine whose sockets are in this folder."""
        self._tell(Epoch(str(directory), facts))

    def disconnect(self) -> None:
        """Tell it that the engine has died."""
        self._tell(Down())

    def close(self, reason: str) -> None:
        """Tell it that the engine has gone for good: it ends its requests with errors, and then itself."""
        self._is_leaving = True
        self._tell(Closed(reason))

    def leave(self, *, is_hurried: bool) -> None:
        """Tell it to end when its open requests have, or to abort them."""
        self._is_leaving = True
        if self._child is not None:
            self._child.tell(Leave(is_hurried))

    def _tell(self, engine: Epoch | Down | Closed) -> None:
        self._engine = engine
        if self._child is not None:
            self._child.tell(engine)

    async def run(self) -> None:
        """Keep a process here until it was told to leave, or the engine has gone. Cancelling kills it.

        Raises EngineClosed when engine.max_restarts is used up.
        """
        limit = self._spec.config.engine.max_restarts
        for left in range(limit, -1, -1):
            cause = await self._live()
            if self._is_leaving:
                return
            log.error("%s; %d restarts left", cause, left)
        raise EngineClosed(f"{cause}, and engine.max_restarts ({limit}) is used up")

    async def _live(self) -> str:
        """Run one process from its start to its end; returns how it ended."""
        number = next(self._numbers)
        self._child = child = Child.spawn("server", self._spec, (self._serve.listener,))
        try:
            child.tell(replace(self._serve, frontend=number))
            child.tell(self._engine)
            await child.ready()
            self.is_ready.set()
            return await child.died()
        except EngineClosed as error:  # it died while it started
            return str(error)
        finally:
            self._child = None
            child.kill()
            self._on_gone(number)


class Servers:
    """Owner of an engine's launcher, and of the server processes that share its engine and one bound socket.

    Raises ConfigError, PluginError at once, before a process starts.
    """

    def __init__(
        self, config: Config, model: Path | None, options: ServerOptions, root: str, listener: socket.socket
    ) -> None:
        if config.engine.processes != "split":
            raise ConfigError(
                f"--api-server-count is {options.api_server_count}, needs an engine in processes of its own "
                f'(engine.processes is "{config.engine.processes}")'
            )
        spec = Spec(config, None if model is None else str(model), "", log.getEffectiveLevel())
        serve = Serve(0, listener.fileno(), root, msgspec.msgpack.encode(options))
        numbers = itertools.count()
        self._options = options
        self._address = address_of(listener)
        self._context: zmq.Context[Any] = zmq.Context()
        self._ports = [ServerPort(spec, serve, numbers, self._gone) for _ in range(options.api_server_count)]
        self._launcher = Launcher(config, model, self._ports, self._context)

    async def serve(self, announce: Callable[[str], None], stop: Stop) -> int:
        """Serve until a signal or the engine's end; returns 1 if the engine failed, and 0 after a signal.

        Raises ConfigError, ModelError where the engine can't start, EngineClosed when restarts of servers run out.
        """
        servers = [asyncio.create_task(port.run(), name="headrace-server") for port in self._ports]
        engine = asyncio.create_task(self._run_engine(announce), name="headrace-engine")
        stopped = asyncio.create_task(stop.asked.wait(), name="headrace-stop")
        tasks = [*servers, engine, stopped]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if all(port.is_ready.is_set() for port in self._ports):
                await self._leave(servers, stop)
            for task in done - {stopped}:
                task.result()
            return FAILED if engine in done else 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._launcher.close()
            self._context.destroy(linger=0)

    async def _run_engine(self, announce: Callable[[str], None]) -> None:
        """Start the engine, tell when all can be asked, and wait until it has gone for good."""
        await self._launcher.start()
        for port in self._ports:
            await port.is_ready.wait()
        announce(self._address)
        await self._launcher.wait()

    async def _leave(self, servers: list["asyncio.Task[None]"], stop: Stop) -> None:
        """Have all servers end their requests and leave; a second signal aborts the requests."""
        hurried = asyncio.create_task(stop.hurried.wait(), name="headrace-hurried")
        left = asyncio.create_task(_ended(servers, self._options.drain_timeout_s + LEAVE_S), name="headrace-left")
        for port in self._ports:
            port.leave(is_hurried=False)
        await asyncio.wait((left, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not left.done():
            for port in self._ports:
                port.leave(is_hurried=True)
            await asyncio.wait(servers, timeout=LEAVE_S)
        hurried.cancel()
        left.cancel()

    def _gone(self, number: int) -> None:
        self._launcher.frontend_gone(number)


async def _ended(tasks: list["asyncio.Task[None]"], timeout_s: float) -> None:
    await asyncio.wait(tasks, timeout=timeout_s)


async def serve_many(
    config: Config,
    model: str | None,
    options: ServerOptions,
    root: str,
    announce: Callable[[str], None],
    listener: socket.socket,
    stop: Stop,
) -> int:
    """Start the engine and options.api_server_count processes that serve it on one bound socket; see Servers.serve."""
    path = await asyncio.to_thread(find_model, model, config.engine.revision)
    return await Servers(config, path, options, root, listener).serve(announce, stop)

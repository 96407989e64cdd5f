"""A server process from its start to its exit code: signals and draining. Not here: its socket (listen.py)."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from headrace.core.model_files.recommended import RECOMMENDED
from headrace.engine import Engine
from headrace.server.app import make_app
from headrace.server.listen import address_of, open_socket
from headrace.server.options import ServerOptions
from headrace.server.service import Service

log = logging.getLogger("headrace")
FAILED = 1
_BACKLOG = 2048
_CLOSE_DEADLINE_S = 2
_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that it is them who close."""


def run(options: ServerOptions, serve: Callable[[socket.socket, "Stop"], Coroutine[Any, Any, int]]) -> int:
    """Bind, and serve until a signal or the engine's end; returns the process's exit code, which is that of `serve`.

    SIGTERM drains up to options.drain_timeout_s, SIGINT or a second signal ends at once. Raises ConfigError where the
    address can't be had, and what `serve` raises.
    """
    import uvloop

    async def main(listener: socket.socket) -> int:
        stop = Stop()
        with stop.on_signals():
            return await serve(listener, stop)

    with open_socket(options) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main(listener))


async def serve(
    engine: Engine,
    options: ServerOptions,
    listener: socket.socket,
    root: str,
    announce: Callable[[str], None],
    stop: "Stop",
) -> int:
    """Start the engine, serve on a bound socket, and close the engine at the end. Returns 1 if the engine failed.

    announce: called with the address once requests can come. Raises ConfigError, ModelError.
    """
    starting = asyncio.create_task(engine.start(), name="headrace-start")
    stopped = asyncio.create_task(stop.asked.wait(), name="headrace-stop")
    try:
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.asked.is_set():
            return 0
        starting.result()
        service = Service(engine, options, root, await _recommended(engine, options))
        return await _serve(service, listener, stop, announce)
    finally:
        stopped.cancel()
        starting.cancel()
        await asyncio.wait((starting, stopped))
        await engine.close()


async def _recommended(engine: Engine, options: ServerOptions) -> dict[str, float]:
    """Return the sampling fields that the model's makers recommend, by name, if the server is to apply them."""
    if options.generation_config == "none":
        return {}
    params = await engine.recommended_params()
    return {name: getattr(params, name) for name in RECOMMENDED}


class Stop:
    """What signals say. Owner: the server's main task."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        """No time for open requests."""

    def ask(self, signal_number: int) -> None:
        """Take a signal."""
        if signal_number == signal.SIGINT or self.asked.is_set():
            self.hurried.set()
        self.asked.set()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.ask, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """Leaves signals to others, and waits where uvicorn would poll."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()
        self.leave = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    async def main_loop(self) -> None:
        await self.leave.wait()


async def _serve(service: Service, listener: socket.socket, stop: Stop, announce: Callable[[str], None]) -> int:
    config = uvicorn.Config(
        make_app(service),
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_CLOSE_DEADLINE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve([listener]), name="headrace-http")
        failed = group.create_task(service.engine.wait_closed(), name="headrace-watch-engine")
        stopped = group.create_task(stop.asked.wait(), name="headrace-stop-asked")
        await server.is_listening.wait()
        announce(address_of(listener))
        done, _ = await asyncio.wait((serving, failed, stopped), return_when=asyncio.FIRST_COMPLETED)
        has_failed = failed in done  # later it may end because it was told to
        if has_failed:
            log.error("the server ends: %s", failed.result())
        elif stopped in done:
            await _drain(service, stop)
        server.leave.set()
        await serving
        failed.cancel()
        stopped.cancel()
    return FAILED if has_failed else 0


async def _drain(service: Service, stop: Stop) -> None:
    """Let open requests end; a second signal aborts them."""
    draining = asyncio.create_task(service.drain(service.options.drain_timeout_s), name="headrace-drain")
    hurried = asyncio.create_task(stop.hurried.wait(), name="headrace-hurried")
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not draining.done():
        draining.cancel()
        await service.drain(0)

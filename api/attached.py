"""An engine in another launcher's processes, used from here through a frontend of its own."""

import asyncio
from pathlib import Path
from typing import Any

import zmq

from headrace.core.errors import EngineClosed
from headrace.core.messages import RunnerReady
from headrace.core.process import Closed, Down, Epoch
from headrace.frontend import Frontend
from headrace.split import LocalPort, serve_frontend

Told = Epoch | Down | Closed


class Attached:
    """Placement of an engine whose launcher is elsewhere and says by `obey` when there is one to connect to.

    number: the frontend's among those of the engine.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._told: asyncio.Queue[Told] = asyncio.Queue()
        self._context: zmq.Context[Any] = zmq.Context()
        self._tasks: list[asyncio.Task[None]] = []
        self._port: LocalPort | None = None

    def obey(self, told: Told) -> None:
        """Do what the launcher says, now or once the frontend is there; never waits."""
        self._told.put_nowait(told)

    async def start(self, frontend: Frontend) -> RunnerReady:
        """Wait until there is an engine to connect to. Raises EngineClosed if there won't be one."""
        self._port = port = LocalPort(frontend, self._context)
        facts: asyncio.Future[RunnerReady] = asyncio.get_running_loop().create_future()
        self._tasks = [
            asyncio.create_task(self._follow(port, facts), name="headrace-follow"),
            asyncio.create_task(serve_frontend(frontend), name="headrace-frontend"),
        ]
        return await facts

    async def _follow(self, port: LocalPort, facts: "asyncio.Future[RunnerReady]") -> None:
        while True:
            match await self._told.get():
                case Epoch(directory, found):
                    port.connect(Path(directory), found)
                    if not facts.done():
                        facts.set_result(found)
                case Down():
                    port.disconnect()
                case Closed(reason):
                    port.close(reason)
                    if not facts.done():
                        facts.set_exception(EngineClosed(reason))

    def pids(self) -> dict[str, int]:
        """Return no processes: they are the launcher's."""
        return {}

    async def close(self) -> None:
        """Disconnect the frontend; idempotent."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.release()

    def release(self) -> None:
        """Close the links: the loop has ended; idempotent."""
        if self._port is not None:
            self._port.disconnect()
        self._context.destroy(linger=0)

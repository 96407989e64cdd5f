"""A server process: OpenAI's API on an engine that others share."""

import asyncio
import signal
import socket

import msgspec

from headrace.attached import Attached
from headrace.core.process import Closed, Down, Epoch, Leave, Parent, Serve, Spec, run_child
from headrace.engine import Engine
from headrace.server.options import ServerOptions
from headrace.server.run import Stop, serve


async def main(parent: Parent, spec: Spec) -> None:
    """Serve until told to leave, until the engine has gone, or until cancelled."""
    given = await parent.told.get()
    assert isinstance(given, Serve)
    options = msgspec.msgpack.decode(given.options, type=ServerOptions)
    attached, stop = Attached(given.frontend), Stop()
    engine = Engine(spec.model, config=spec.config, placement=attached)
    with socket.socket(fileno=given.listener) as listener:
        async with asyncio.TaskGroup() as group:
            obeying = group.create_task(_obey(parent, attached, stop), name="headrace-obey")
            await serve(engine, options, listener, given.root, lambda _address: parent.ready(), stop)
            obeying.cancel()


async def _obey(parent: Parent, attached: Attached, stop: Stop) -> None:
    while True:
        match await parent.told.get():
            case Leave(is_hurried):
                stop.ask(signal.SIGINT if is_hurried else signal.SIGTERM)
            case Epoch() | Down() | Closed() as told:
                attached.obey(told)


if __name__ == "__main__":
    run_child(main)

"""ZeroMQ links between processes: PUSH sockets that connect, PULL sockets that bind, msgpack frames between them.

No link ever blocks and none drops: there is no high-water mark, memory is bounded by admission instead. A frame
carries a list of messages.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from headrace.core.errors import ConfigError

T = TypeVar("T")

MAX_PATH = 107
"""Bytes of a Unix socket's path, the terminating zero not counted."""
_RECONNECT_MS = 5


def check_path(path: Path) -> str:
    """Return the ZeroMQ address of a socket file. Raises ConfigError if the path is too long for one."""
    if len(str(path).encode()) > MAX_PATH:
        raise ConfigError(f"socket path {path} has over {MAX_PATH} bytes; set TMPDIR to a shorter folder")
    return f"ipc://{path}"


class Outbound(Generic[T]):
    """The sending end of a link. `send` may be called from any thread."""

    def __init__(self, context: zmq.Context[Any], path: Path) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.PUSH)
        _set_up(self._socket)
        self._socket.connect(check_path(path))
        self._is_closed = False

    def send(self, *messages: T) -> None:
        """Send messages as one frame, in order; returns at once. After close() they are dropped."""
        frame = self._encoder.encode(messages)
        with self._lock:
            if not self._is_closed:
                self._socket.send(frame, zmq.NOBLOCK)

    def close(self, linger_ms: int = 0) -> None:
        """Close; frames not sent yet get `linger_ms` more."""
        with self._lock:
            self._is_closed = True
            self._socket.close(linger_ms)


class Inbound(Generic[T]):
    """The receiving end: a thread that receives, decodes and hands over.

    kind: the union of message types that may come. deliver: called on the thread with what came, in order, such as an
    inbox's `buffer.extend`.
    """

    def __init__(self, context: zmq.Context[Any], path: Path, kind: Any, deliver: Callable[[list[T]], None]) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kind])
        self._deliver = deliver
        self._socket = context.socket(zmq.PULL)
        _set_up(self._socket)
        self._socket.bind(check_path(path))
        self._stop_address = f"inproc://stop-{id(self)}"
        self._stop = context.socket(zmq.PAIR)
        self._stop.bind(self._stop_address)
        self._thread = threading.Thread(target=self._receive, args=(context,), name=f"link {path.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop receiving; idempotent."""
        if not self._stop.closed:
            self._stop.send(b"")
            self._thread.join()
            self._stop.close(0)

    def _receive(self, context: zmq.Context[Any]) -> None:
        stop = context.socket(zmq.PAIR)
        stop.connect(self._stop_address)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while stop not in dict(poller.poll()):
            if messages := self._take_all():
                self._deliver(messages)
        self._socket.close(0)
        stop.close(0)

    def _take_all(self) -> list[T]:
        messages: list[T] = []
        try:
            while True:
                messages += self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return messages


def _set_up(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)

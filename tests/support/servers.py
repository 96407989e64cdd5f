"""Servers in this process, on a loop of their own thread, for tests whose clients are real."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import openai
import uvloop
from engines import HANG_GUARD_S, check_idle, kvhash

from headrace import Engine
from headrace.server.listen import open_socket
from headrace.server.options import ServerOptions
from headrace.server.run import Stop, serve


class Server:
    """A running server and what tests ask of it."""

    def __init__(self, engine: Engine, options: ServerOptions, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self.engine = engine
        self.options = options
        self.address = address
        self.loop = loop
        self.stop: Stop | None = None
        self.exit_code: Future[int] = Future()

    def run(self, work: Any) -> Any:
        """Await something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_GUARD_S)

    def check_idle(self) -> None:
        """Check that nothing is left of any request."""
        self.run(check_idle(self.engine))

    def wait_open(self, number: int) -> None:
        """Wait until so many prompts are unfinished."""

        async def wait() -> None:
            while self.engine.num_open() != number:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)

        self.run(wait())

    def finished(self) -> dict[str, int]:
        """Count ended completions by reason."""
        return self.run(self.engine.stats()).finished

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Do what a signal does; nothing, if the server has ended."""
        assert self.stop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.stop.ask, number)

    def client(self, **options: Any) -> openai.OpenAI:
        """Make an official client, which must be closed."""
        given = {"api_key": "none", "max_retries": 0, "timeout": HANG_GUARD_S, **options}
        return openai.OpenAI(base_url=f"{self.address}/v1", **given)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """Make an official asynchronous client, which must be closed."""
        given = {"api_key": "none", "max_retries": 0, "timeout": HANG_GUARD_S, **options}
        return openai.AsyncOpenAI(base_url=f"{self.address}/v1", **given)

    def connect(self) -> socket.socket:
        """Open a bare connection."""
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=HANG_GUARD_S)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] = {}) -> "Answer":  # noqa: B006
        """Send one request; bytes go as they are, anything else as JSON."""
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=HANG_GUARD_S)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def send(self, path: str, body: Any) -> socket.socket:
        """POST JSON on a bare connection without reading the answer."""
        connection, content = self.connect(), json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    def post(self, path: str, body: Any, **headers: str) -> "Answer":
        """POST JSON."""
        return self.request("POST", path, body, headers)

    def get(self, path: str, **headers: str) -> "Answer":
        """GET."""
        return self.request("GET", path, None, headers)


class Answer:
    """One HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        """Decode strict JSON: NaN and Infinity fail."""
        return json.loads(self.body, parse_constant=_fail)

    def error(self) -> dict[str, Any]:
        """Return the error, which has all of its fields."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def events(self) -> list[Any]:
        """Decode server-sent events, of which exactly one is the terminator, at the end."""
        lines = [line for line in self.body.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert [line == "data: [DONE]" for line in lines] == [False] * (len(lines) - 1) + [True]
        return [json.loads(line.removeprefix("data: "), parse_constant=_fail) for line in lines[:-1]]


def _fail(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@contextlib.contextmanager
def serving(engine: Engine | None = None, *, checks_idle: bool = True, **options: Any) -> Iterator[Server]:
    """Serve an engine (kvhash, if none is given) on a free port; at the end nothing may be left of any request."""
    engine = engine or kvhash()
    given = ServerOptions(**{"port": 0, "drain_timeout_s": 0, **options})
    ready: Future[Server] = Future()
    thread = threading.Thread(target=_serve, args=(engine, given, ready), name="test-server")
    thread.start()
    try:
        server = ready.result(HANG_GUARD_S)
        try:
            yield server
            if checks_idle:
                server.check_idle()
        finally:
            server.ask_to_stop()
    finally:
        thread.join(HANG_GUARD_S)
        assert not thread.is_alive()


def _serve(engine: Engine, options: ServerOptions, ready: "Future[Server]") -> None:
    async def main(listener: socket.socket) -> None:
        loop, stop = asyncio.get_running_loop(), Stop()
        server: list[Server] = []

        def announce(address: str) -> None:
            server.append(Server(engine, options, loop, address))
            server[0].stop = stop
            ready.set_result(server[0])

        code = await serve(engine, options, listener, "test", announce, stop)
        server[0].exit_code.set_result(code)

    try:
        with open_socket(options) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(listener))
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise

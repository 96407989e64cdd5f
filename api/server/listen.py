"""Where a server listens: a TCP port or a Unix socket, bound before a model loads."""

import contextlib
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import ConfigError
from headrace.server.options import ServerOptions


@contextlib.contextmanager
def open_socket(options: ServerOptions) -> Iterator[socket.socket]:
    """Bind, so that a taken port is told before a model loads. Raises ConfigError naming the address."""
    if options.uds is not None:
        with _bound_path(Path(options.uds)) as listener:
            yield listener
        return
    where = f"--host {options.host} --port {options.port}"
    with _explained(where):
        family, _, _, _, place = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _explained(where):
            listener.bind(place)
        yield listener


@contextlib.contextmanager
def _bound_path(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with _explained(f"--uds {path}"):
            _remove_stale(path)
            listener.bind(str(path))
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"can't listen on {where}: {error.strerror or error}") from None


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more; anything else stays and makes the bind fail."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def address_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket, or its path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

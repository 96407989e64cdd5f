"""Ports and Unix sockets."""

import http.client
import socket

import pytest
from servers import serving

from headrace.core.errors import ConfigError
from headrace.server.listen import open_socket
from headrace.server.options import ServerOptions


def test_a_taken_port_is_told_with_its_options():
    with open_socket(ServerOptions(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}"), open_socket(ServerOptions(port=port)):
            pass


def test_an_unknown_host_is_told():
    options = ServerOptions(host="no.such.host.invalid")
    with pytest.raises(ConfigError, match="--host no.such.host.invalid"), open_socket(options):
        pass


def test_a_unix_socket_serves_and_is_gone_afterwards(tmp_path):
    path = tmp_path / "socket"
    with serving(uds=str(path)) as server:
        assert server.address == f"unix:{path}"
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    with open_socket(ServerOptions(uds=path)) as listener:
        listener.listen()
        with pytest.raises(ConfigError, match="--uds"), open_socket(ServerOptions(uds=path)):
            pass


def test_a_file_is_never_replaced_by_a_socket(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="--uds"), open_socket(ServerOptions(uds=str(file))):
        pass
    assert file.read_text() == "mine"

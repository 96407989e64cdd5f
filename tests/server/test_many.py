"""Several server processes on one engine. Their deaths are in tests/integration/test_serve_faults.py."""

import http.client
import json
import socket

import pytest
from commands import serving

from headrace.cli.main import main


def ask(path, method, target, body=None):
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    try:
        connection.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_they_share_a_unix_socket_with_all_options(tmp_path):
    path = tmp_path / "socket"
    options = ("--served-model-name", "m", "--max-body-bytes", "1000", "--api-server-count", "2")
    with serving("--uds", str(path), *options) as served:
        assert served.address == f"unix:{path}"
        assert len(served.pids("server")) == 2
        for _ in range(8):
            status, body = ask(path, "POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3})
            assert (status, json.loads(body)["model"]) == (200, "m")
        assert ask(path, "POST", "/v1/completions", {"prompt": "x" * 1000})[0] == 413
    assert not path.exists()


def test_an_engine_that_cannot_start_is_told_as_with_one(capsys):
    runner = ("--runner", "kvhash", "--tokenizer", "symbols", "--port", "0", "--api-server-count", "2")
    assert main(["serve", *runner, "--no-enable-chunked-prefill", "--max-num-batched-tokens", "64"]) == 2
    assert "max_num_batched_tokens is 64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--api-server-count", "0"), "--api-server-count is 0, must be at least 1"),
        (("--api-server-count", "2", "--processes", "inline"), "--api-server-count is 2, needs an engine in processes"),
    ],
)
def test_a_number_that_cannot_be_is_told(options, message, capsys):
    assert main(["serve", "--runner", "kvhash", "--tokenizer", "symbols", "--port", "0", *options]) == 2
    assert message in capsys.readouterr().err

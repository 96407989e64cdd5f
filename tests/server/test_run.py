"""Signals, draining, and the command itself."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engines import kvhash
from servers import serving

LONG = {"prompt": "Hello", "max_tokens": 100_000, "ignore_eos": True, "stream": True}


def endless():
    return kvhash(max_model_len=120_000, num_kv_blocks=8192)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def wait_draining(server) -> None:
    while server.get("/health").status == 200:
        pass


def test_F14_while_draining_open_requests_go_on_and_new_ones_get_503():
    with serving(kvhash(), drain_timeout_s=60, checks_idle=False) as server:
        server.run(server.engine.pause("keep"))
        open_request = server.send("/v1/completions", {**LONG, "max_tokens": 5})
        server.wait_open(1)
        server.ask_to_stop()
        wait_draining(server)
        refused = server.post("/v1/completions", {"prompt": "Hello"})
        assert (refused.status, refused.error()["code"]) == (503, "engine_closed")
        assert server.get("/health").json()["status"] == "draining"
        server.run(server.engine.resume())
        answer = read_all(open_request)
        open_request.close()
        assert b'"finish_reason":"length"' in answer
        assert answer.count(b"[DONE]") == 1
        assert server.exit_code.result(60) == 0


@pytest.mark.parametrize(("number", "drain_timeout_s"), [(signal.SIGTERM, 0), (signal.SIGINT, 60)])
def test_F14_without_time_streams_end_with_their_last_chunk(number, drain_timeout_s):
    with serving(endless(), drain_timeout_s=drain_timeout_s, checks_idle=False) as server:
        with server.send("/v1/completions", LONG) as connection:
            assert connection.recv(1) == b"H"
            server.ask_to_stop(number)
            answer = read_all(connection)
        assert answer.count(b"[DONE]") == 1
        assert b'"finish_reason":"abort"' in answer
        assert server.exit_code.result(60) == 0


def test_a_second_signal_does_not_wait_for_the_first_ones_drain():
    with serving(endless(), drain_timeout_s=60, checks_idle=False) as server:
        with server.send("/v1/completions", LONG) as connection:
            assert connection.recv(1) == b"H"
            server.ask_to_stop()
            server.ask_to_stop()
            assert read_all(connection).count(b"[DONE]") == 1
        assert server.exit_code.result(60) == 0


def test_F14_a_request_that_never_comes_whole_gets_503_and_does_not_hold_up_the_end():
    with serving(drain_timeout_s=60, checks_idle=False) as server:
        with server.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\n{")
            while b"headrace:http_requests_open 1.0" not in server.get("/metrics").body:
                pass
            server.ask_to_stop(signal.SIGINT)
            assert read_all(connection).startswith(b"HTTP/1.1 503 ")
        assert server.exit_code.result(60) == 0


def test_F01_the_server_ends_with_1_when_its_engine_has_ended():
    with serving(endless(), checks_idle=False) as server:
        with server.send("/v1/completions", LONG) as connection:
            assert connection.recv(1) == b"H"
            server.run(server.engine.close())
            answer = read_all(connection)
        assert b'"error"' in answer
        assert answer.count(b"[DONE]") == 1
        assert server.exit_code.result(60) == 1


def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    command = [str(Path(sys.executable).with_name("headrace")), "serve", "--runner", "kvhash"]
    command += [
        "--tokenizer",
        "symbols",
        "--port",
        "0",
        "--served-model-name",
        "m",
        "--max-model-len",
        "64",
        "--processes",
        "inline",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            host = re.search(r"http://(\S+)", process.stdout.readline())[1]
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request("GET", "/v1/models")
            assert b'"id":"m"' in connection.getresponse().read()
            connection.close()
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()

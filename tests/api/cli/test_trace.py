"""headrace trace, on a server in this process."""

import json

import pytest
from engines import kvhash
from servers import serving

from headrace.cli.main import main


def test_a_trace_of_a_server_shows_every_process_and_the_overlap_of_steps(tmp_path, capsys):
    file = tmp_path / "trace.json"
    with serving(kvhash(processes="split"), api_keys=("secret",)) as server:
        key = {"Authorization": "Bearer secret"}
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 50, "ignore_eos": True}, **key)
        assert main(["trace", "--url", server.address, "--output", str(file), "--api-key", "secret"]) == 0
    events = json.loads(file.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert f"{file} holds {len(spans)} spans" in capsys.readouterr().out
    processes = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(processes.values()) == {"input", "core", "runner", "output"}
    ends = {span["args"]["step"]: span["ts"] + span["dur"] for span in spans if span["name"] == "compute"}
    starts = {span["args"]["step"]: span["ts"] for span in spans if span["name"] == "schedule"}
    assert [step for step in ends if step + 1 in starts and starts[step + 1] < ends[step]]


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "unix:/nowhere"])
def test_a_server_that_is_not_there_is_one_line(url, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert main(["trace", "--url", url, "--output", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"headrace: {url} gave no trace: Cannot connect")
    assert not file.exists()


def test_a_wrong_key_is_told(tmp_path, capsys):
    with serving(api_keys=("secret",)) as server:
        assert main(["trace", "--url", server.address, "--output", str(tmp_path / "trace.json")]) == 1
    assert "status 401" in capsys.readouterr().err

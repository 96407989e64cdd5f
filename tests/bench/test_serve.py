"""The load generator against a real server."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from engines import kvhash, script
from servers import serving

from headrace.bench.client import BenchFailed, Target
from headrace.bench.serve import Load, measure
from headrace.core.errors import InvalidParameter


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server
        server.check_idle()


def target(server, **fields):
    given = {"model": "", "is_chat": False, "output_len": 8, "ignore_eos": True, "temperature": 0.0}
    return Target(**{"url": server.address, **given, **fields})


def load(**fields):
    given = {
        "num_prompts": 12,
        "rate": None,
        "concurrency": 4,
        "input_len": 40,
        "prompts": None,
        "seed": 0,
        "goals": (),
    }
    return Load(**{**given, **fields})


def run(target, load):
    return asyncio.run(measure(target, load, shows_progress=False))


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize("how", [{"concurrency": 4}, {"concurrency": None, "rate": 400.0}])
def test_every_request_is_measured(server, is_chat, how):
    report = run(target(server, is_chat=is_chat), load(**how))
    assert (report.summary.completed, report.summary.failed) == (12, 0)
    assert report.summary.output_tokens == 12 * 8
    assert report.target.model == "headrace"
    for record in report.requests:
        assert record.started < record.token_times[0] <= record.token_times[-1] <= record.ended
        assert record.prompt_tokens == pytest.approx(40, abs=20)


def test_never_more_than_the_wanted_concurrency_is_open(server):
    records = run(target(server), load(concurrency=3)).requests
    edges = sorted([(record.started, 1) for record in records] + [(record.ended, -1) for record in records])
    depth = [sum(change for _, change in edges[: index + 1]) for index in range(len(edges))]
    assert max(depth) <= 3


def test_prompts_come_from_a_file_as_often_as_needed(server, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"Hello"\n{"prompt": "Hello you"}\n')
    report = run(target(server), load(prompts=file, num_prompts=5, concurrency=1))
    assert [record.prompt_tokens for record in report.requests] == [5, 9, 5, 9, 5]


def test_failed_requests_are_counted_with_their_reason():
    with serving(script([1, 2, 3], faults=[{"kind": "raise", "index": 2, "times": 2}])) as server:
        report = run(target(server), load(num_prompts=6, concurrency=1))
        assert (report.summary.completed, report.summary.failed) == (4, 2)
        assert {bool(record.error) for record in report.requests} == {True, False}


def test_a_key_is_sent_and_kept_out_of_the_report():
    with serving(api_keys=("key",)) as server:
        with pytest.raises(BenchFailed, match="401"):
            run(target(server), load())
        report = run(target(server, api_key="key"), load())
        assert (report.summary.completed, report.target.api_key) == (12, None)


def test_a_server_that_is_not_there_is_told():
    with serving() as server:
        address = server.address
    with pytest.raises(BenchFailed, match=address):
        run(Target(url=address, model="m", is_chat=False, output_len=1, ignore_eos=True, temperature=0), load())


@pytest.mark.parametrize("fields", [{"rate": 1.0}, {"concurrency": None}, {"concurrency": 0}, {"input_len": 0}])
def test_a_load_that_is_none_is_refused(fields):
    with pytest.raises(InvalidParameter, match="--"):
        load(**fields)


def test_the_command_prints_figures_and_writes_them(tmp_path):
    with serving(kvhash()) as server:
        file = tmp_path / "result.json"
        command = [str(Path(sys.executable).with_name("headrace")), "bench", "serve", "--url", server.address]
        command += ["--concurrency", "2", "--num-prompts", "4", "--output-len", "4", "--goodput", "ttft:60000"]
        done = subprocess.run([*command, "--output", str(file)], capture_output=True, text=True, timeout=60, check=True)
        assert "TTFT" in done.stdout
        assert "goodput" in done.stdout
        result = json.loads(file.read_text())
        assert result["summary"]["completed"] == 4
        assert len(result["requests"]) == 4

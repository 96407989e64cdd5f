"""Engines in several processes: what happens when one of them dies. Outputs are `kvhash`'s, so that they are exact."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from engines import check_idle, kvhash, run

from headrace import SamplingParams
from headrace.core.errors import ConfigError, EngineClosed, InvalidParameter, InvalidPrompt
from headrace.core.messages import Admit, RequestId
from headrace.core.prompts import TokenPrompt
from headrace.runners.kvhash import reference

LONG = SamplingParams(temperature=0, max_tokens=400)
ROLES = ("worker", "core", "input", "output")


def split(**overrides):
    return kvhash(processes="split", max_model_len=2048, **overrides)


def pids(engine):
    return engine.pids()


def own_folders():
    return list(Path(tempfile.gettempdir()).glob(f"headrace-{os.getpid()}-*"))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


async def until(condition):
    while not condition():  # noqa: ASYNC110 - a foreign process does it
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("role", ROLES)
def test_F01_streams_survive_the_death_of_any_process_with_the_same_text(role):
    async def test():
        async with split() as engine:
            before = pids(engine)
            prompts = [[i, 1, 2] for i in range(16)]
            streams = [engine.stream(prompt, LONG) for prompt in prompts]
            sampled = SamplingParams(temperature=0.9, seed=5, max_tokens=300, n=2)
            seeded = engine.stream([7], sampled)
            first = [await anext(stream) for stream in streams]
            os.kill(before[role], signal.SIGKILL)
            results = await asyncio.gather(*(stream.result() for stream in streams))
            for prompt, chunk, result in zip(prompts, first, results, strict=True):
                assert chunk.token_ids + result.token_ids == reference(prompt, 400)
                assert result.usage.completion_tokens == 400
                assert len(chunk.text + result.text) == 400
            again = await engine.generate([7], sampled)
            disturbed = await seeded.result()
            assert [c.token_ids for c in disturbed.completions] == [c.token_ids for c in again.completions]
            after = pids(engine)
            assert not set(before.values()) & set(after.values())
            assert not any(is_alive(pid) for pid in before.values())
            await check_idle(engine)

    run(test)


def test_stop_strings_and_logprobs_go_on_across_a_restart():
    async def test():
        async with split() as engine:
            whole = await engine.generate([5], LONG)
            stop = whole.text[300:303]
            cut = whole.text.index(stop)
            params = SamplingParams(temperature=0, max_tokens=400, stop=stop, logprobs=0)
            stream = engine.stream([5], params)
            first = await anext(stream)
            os.kill(pids(engine)["core"], signal.SIGKILL)
            rest = await stream.result()
            assert first.text + rest.text == whole.text[:cut]
            assert rest.finish_reason == "stop"
            assert len(first.logprobs) + len(rest.logprobs) == len(first.token_ids) + len(rest.token_ids)
            assert rest.usage.completion_tokens == cut + 3

    run(test)


def test_aborts_while_the_engine_is_away_end_their_streams():
    async def test():
        async with split() as engine:
            streams = [engine.stream([i], LONG) for i in range(3)]
            for stream in streams:
                await anext(stream)
            os.kill(pids(engine)["core"], signal.SIGKILL)
            await asyncio.sleep(0.05)
            await streams[0].abort()
            await streams[1].aclose()
            assert (await streams[0].result()).finish_reason in ("abort", "length")
            assert (await streams[2].result()).finish_reason == "length"
            await check_idle(engine)

    run(test)


def test_F01_when_restarts_run_out_every_request_ends_with_an_error():
    async def test():
        engine = split(max_restarts=0)
        async with engine:
            streams = [engine.stream([i], SamplingParams(max_tokens=2000)) for i in range(4)]
            for stream in streams:
                await anext(stream)
            os.kill(pids(engine)["output"], signal.SIGKILL)
            for stream in streams:
                with pytest.raises(EngineClosed, match=r"output process ended.*SIGKILL"):
                    await stream.result()
            with pytest.raises(EngineClosed):
                await engine.generate([1])

    run(test)


def test_a_process_that_dies_while_starting_gives_a_clear_error_and_leaves_nothing():
    async def test():
        starting = split()
        task = asyncio.create_task(starting.start())
        await until(lambda: len(pids(starting)) == 4)
        os.kill(pids(starting)["core"], signal.SIGKILL)
        with pytest.raises(EngineClosed, match="core process died while it started"):
            await task
        assert not own_folders()

    run(test)


def test_an_engine_closed_while_it_starts_leaves_nothing():
    async def test():
        engine = split()
        task = asyncio.create_task(engine.start())
        await until(lambda: len(pids(engine) if engine._placement else ()) == 4)
        children = pids(engine).values()
        await engine.close()
        with pytest.raises(EngineClosed, match="closed while it started"):
            await task
        assert not any(is_alive(pid) for pid in children)
        assert not own_folders()
        with pytest.raises(EngineClosed):
            await engine.start()

    run(test)


def test_a_restart_that_fails_unexpectedly_ends_every_request(monkeypatch):
    async def test():
        async with split() as engine:
            stream = engine.stream([1], SamplingParams(max_tokens=2000))
            await anext(stream)
            monkeypatch.setattr("sys.executable", "/nowhere/python")
            os.kill(pids(engine)["core"], signal.SIGKILL)
            with pytest.raises(EngineClosed, match="can't start again: FileNotFoundError"):
                await stream.result()
            await engine.wait_closed()

    run(test)


def test_a_message_that_a_process_cannot_read_ends_it_instead_of_its_link():
    async def test():
        async with split(max_restarts=0) as engine:
            stream = engine.stream([1], SamplingParams(max_tokens=2000))
            await anext(stream)
            engine._frontend._send(Admit(RequestId(0, 9, 0), b"", 0, 1, 0, (), None))  # nothing that input takes
            with pytest.raises(EngineClosed, match=r"the input process ended \(exit code 1\)"):
                await stream.result()

    run(test)


def test_D05_bad_input_never_gets_to_another_process():
    async def test():
        async with split() as engine:
            for wrong in (["abc"], [1.5], [2**70], "\ud800", ["\ud800"]):
                with pytest.raises((InvalidPrompt, InvalidParameter)):
                    await engine.generate(wrong)
            with pytest.raises(InvalidParameter, match="policy_args"):
                await engine.generate([1], policy_args={1: 2})
            with pytest.raises(InvalidParameter, match="force"):
                await engine.reset_prefix_cache(force=1)
            with pytest.raises(InvalidPrompt):
                await engine.tokenize(TokenPrompt(("abc",)))
            with pytest.raises(InvalidParameter, match="tokens has the token id"):
                await engine.detokenize(["abc"])
            assert (await engine.generate([1], LONG)).token_ids == reference([1], 400)
            await check_idle(engine)

    run(test)


def test_F13_ctrl_c_while_children_start_shows_no_traceback_of_theirs():
    script = (
        "import asyncio, signal\n"
        "from headrace import Engine\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # shells ignore it in what they run behind
        "async def main():\n"
        "    engine = Engine(runner='kvhash', tokenizer='symbols', max_model_len=512)\n"
        "    starting = asyncio.create_task(engine.start())\n"
        "    while not engine.pids(): await asyncio.sleep(0)\n"
        "    print('started', flush=True)\n"
        "    await starting\n"
        "    await asyncio.Event().wait()\n"
        "try: asyncio.run(main())\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert user.stdout.readline() == "started\n"
    time.sleep(0.1)  # in the middle of their imports
    os.killpg(user.pid, signal.SIGINT)
    out, err = user.communicate(timeout=60)
    assert (out, err, user.returncode) == ("interrupted\n", "", 0)


def test_children_do_not_import_from_the_working_directory(tmp_path):
    (tmp_path / "zmq.py").write_text("raise ZeroDivisionError('from the working directory')\n")
    script = (
        "import asyncio\n"
        "from headrace import Engine, SamplingParams\n"
        "async def main():\n"
        "    async with Engine(runner='kvhash', tokenizer='symbols', max_model_len=512) as engine:\n"
        "        print(len((await engine.generate([1], SamplingParams(max_tokens=5))).token_ids))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


def test_errors_of_a_child_reach_the_caller_with_their_type():
    async def test():
        with pytest.raises(ConfigError, match="max_num_batched_tokens is 64"):
            async with split(enable_chunked_prefill=False, max_num_batched_tokens=64):
                pass

    run(test)


def test_F02_children_leave_when_the_user_s_process_is_killed():
    script = (
        "import asyncio, sys\n"
        "from headrace import Engine\n"
        "async def main():\n"
        "    async with Engine(runner='kvhash', tokenizer='symbols', max_model_len=512) as engine:\n"
        "        print(*engine.pids().values(), flush=True)\n"
        "        await engine.generate([1], __import__('headrace').SamplingParams(max_tokens=500, temperature=0))\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    user = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    children = [int(pid) for pid in user.stdout.readline().split()]
    assert len(children) == 4
    user.kill()
    user.wait()
    user.stdout.close()
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_F05_several_engines_start_at_once_and_leave_nothing():
    async def test():
        engines = [split() for _ in range(2)]
        await asyncio.gather(*(engine.start() for engine in engines))
        results = await asyncio.gather(*(engine.generate([3], LONG) for engine in engines))
        assert all(result.token_ids == reference([3], 400) for result in results)
        await asyncio.gather(*(engine.close() for engine in engines))
        assert not own_folders()

    run(test)


def test_F05_a_temporary_folder_too_deep_for_sockets_is_a_clear_error(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    async def test():
        with pytest.raises(ConfigError, match="set TMPDIR to a shorter folder"):
            await split().start()

    run(test)
    assert not list(deep.iterdir())


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_F09_a_script_without_a_main_guard_works(how, tmp_path):
    script = (
        "from headrace import LLM, SamplingParams\n"
        "llm = LLM(runner='kvhash', tokenizer='symbols', processes='split', max_model_len=512)\n"
        "print(len(llm.generate([[1]], SamplingParams(max_tokens=5), use_tqdm=False)[0].token_ids))\n"
    )
    file = tmp_path / "script.py"
    file.write_text(script)
    arguments = {"file": [str(file)], "-c": ["-c", script], "stdin": ["-"]}[how]
    given = script if how == "stdin" else None
    done = subprocess.run(
        [sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr

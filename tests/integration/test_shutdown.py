"""Ends of engines: closed late, twice, from elsewhere, or never. Each in a process of its own."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from commands import is_alive, until
from engines import HANG_GUARD_S

ENGINE = """
import asyncio, gc, threading
from headrace import Engine, SamplingParams

async def start():
    global engine, stream
    engine = await Engine(runner="kvhash", tokenizer="symbols", max_model_len=1024, processes="{processes}").start()
    stream = engine.stream([1], SamplingParams(max_tokens=1000))
    await anext(stream)
    print(*engine.pids().values(), flush=True)
"""
LLM = """
import gc, threading
from headrace import LLM, SamplingParams
llm = LLM(runner="kvhash", tokenizer="symbols", max_model_len=1024, processes="{processes}")
llm.generate([[1]], SamplingParams(max_tokens=3), use_tqdm=False)
print(*llm._engine.pids().values(), flush=True)
"""
ENDS = {
    "closed twice after its loop": ENGINE + "asyncio.run(start())\nfor _ in range(2): asyncio.run(engine.close())",
    "closed from another thread": ENGINE
    + "async def main():\n    await start()\n    await asyncio.to_thread(lambda: asyncio.run(engine.close()))\n"
    + "asyncio.run(main())",
    "never closed": ENGINE + "asyncio.run(start())",
    "an LLM closed from two threads": LLM
    + "other = threading.Thread(target=llm.close)\nother.start()\nllm.close()\nother.join()",
    "an LLM dropped": LLM + "thread = llm._thread\ndel llm\nthread.join(60)\nassert not thread.is_alive()",
    "an LLM never closed": LLM,
}
IN_CI = ("closed twice after its loop", "closed from another thread", "an LLM dropped")


def cases():
    for end in ENDS:
        for processes in ("split", "inline"):
            in_ci = end in IN_CI and processes == "split"
            yield pytest.param(end, processes, marks=() if in_ci else pytest.mark.verify, id=f"{end}, {processes}")


def folders(pid):
    return list(Path(tempfile.gettempdir()).glob(f"headrace-{pid}-*"))


@pytest.mark.parametrize(("end", "processes"), list(cases()))
def test_F06_whatever_the_end_nothing_is_left_and_nothing_is_said(end, processes):
    script = ENDS[end].format(processes=processes)
    # what was never closed may warn of it, which Python doesn't show by default
    warnings = "default" if "never" in end else "error"
    with subprocess.Popen(
        [sys.executable, "-W", warnings, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as user:
        out, err = user.communicate(timeout=HANG_GUARD_S)
        said = [line for line in err.splitlines() if "ResourceWarning" not in line] if "never" in end else err
        assert (user.returncode, said or "") == (0, ""), err
    children = [int(pid) for pid in out.split()]
    assert len(children) == (4 if processes == "split" else 0)
    until(lambda: not any(map(is_alive, children)))
    until(lambda: not folders(user.pid))


UNSENT = (
    ENGINE
    + """
import os, signal, time

async def main():
    await start()
    os.kill(engine.pids()["input"], signal.{signal})
    streams = [engine.stream("x" * 10_000, SamplingParams(max_tokens=1)) for _ in range(100)]
    print(time.time(), flush=True)

asyncio.run(main())
"""
)


@pytest.mark.parametrize("number", ["SIGSTOP", pytest.param("SIGKILL", marks=pytest.mark.verify)])
def test_F10_messages_that_nobody_takes_do_not_hold_up_the_exit(number):
    script = UNSENT.format(processes="split", signal=number)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_GUARD_S, check=False
    )
    ended = time.time()
    assert done.returncode == 0, done.stderr
    pids, left = done.stdout.splitlines()
    assert ended - float(left) < (3 if number == "SIGKILL" else HANG_GUARD_S)
    until(lambda: not any(is_alive(int(pid)) for pid in pids.split()))

"""Engines and forks of the process that opened them."""

import json
import subprocess
import sys

import pytest

from headrace.runners.kvhash import reference

SCRIPT = """
import json, os, sys
from headrace import LLM, SamplingParams
from headrace.core.errors import EngineClosed

def open_llm():
    options = {"tokenizer": {"vocab_size": 512}}
    return LLM(runner="kvhash", tokenizer="symbols", max_model_len=256, options=options, processes=sys.argv[1])

def run(llm, number):
    params = SamplingParams(temperature=0, max_tokens=8)
    prompts = [[number, i] for i in range(50)]
    return [result.token_ids for result in llm.generate(prompts, params, use_tqdm=False)]

with open_llm() as llm:
    before = run(llm, 0)
    children = []
    for number in (1, 2):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            try:
                run(llm, number)
                said = "no error"
            except EngineClosed as error:
                said = str(error)
            llm.close()
            with open_llm() as own:
                os.write(write_end, json.dumps([said, run(own, number)]).encode())
            os._exit(0)
        os.close(write_end)
        children.append(read_end)
    found = []
    for read_end in children:
        with open(read_end, "rb") as pipe:
            found.append(json.loads(pipe.read()))
    print(json.dumps({"children": found, "parent": [before, run(llm, 0)]}))
"""


@pytest.mark.parametrize("processes", ["inline", "split"])
def test_F11_a_fork_opens_an_engine_of_its_own_and_is_told_so_and_nobody_gets_anothers_answers(processes):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, processes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    expected = [[reference([number, i], 8) for i in range(50)] for number in range(3)]
    assert found["parent"] == [expected[0], expected[0]]
    for number, (said, answers) in enumerate(found["children"], start=1):
        assert "open another engine here" in said
        assert answers == expected[number]

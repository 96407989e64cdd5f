import asyncio
import threading

import pytest

from headrace import LLM, SamplingParams
from headrace.core.errors import ConfigError, EngineClosed, InvalidParameter, InvalidPrompt
from headrace.runners.kvhash import reference

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture
def llm():
    options = {"tokenizer": {"vocab_size": 512}}
    with LLM(runner="kvhash", tokenizer="symbols", max_model_len=512, num_kv_blocks=64, options=options) as llm:
        yield llm


def test_a_list_of_prompts_gives_results_in_its_order(llm):
    prompts = [[i + 1] * (40 - i) for i in range(30)]
    results = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [result.token_ids for result in results] == [reference(prompt, 6) for prompt in prompts]


def test_one_text_one_list_of_ids_and_params_one_each(llm):
    assert llm.generate("abc", GREEDY, use_tqdm=False)[0].usage.prompt_tokens == 3
    assert llm.generate([1, 2], GREEDY, use_tqdm=False)[0].token_ids == reference([1, 2], 6)
    lengths = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 3)]
    assert [len(r.token_ids) for r in llm.generate(["a", "b"], lengths, use_tqdm=False)] == [1, 3]
    with pytest.raises(InvalidParameter, match="params has 2 entries for 1 prompts"):
        llm.generate(["a"], lengths)
    assert llm.generate([], GREEDY) == []


def test_B09_one_invalid_prompt_raises_and_leaves_nothing_of_its_siblings(llm):
    steps = llm.stats().steps
    with pytest.raises(InvalidPrompt, match="token id 49152"):
        llm.generate(["Hello", [49152], "Hi"], GREEDY, use_tqdm=False)
    assert llm.stats().steps == steps
    results = llm.generate(["Yes"], GREEDY, use_tqdm=False)
    assert len(results) == 1
    assert llm.stats().finished == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_a_chat_answers_one_or_many_conversations(llm):
    one = [{"role": "user", "content": "Hi"}]
    assert len(llm.chat(one, GREEDY, use_tqdm=False)) == 1
    assert len(llm.chat([one, one], GREEDY, use_tqdm=False)) == 2


def test_it_works_where_a_loop_runs_already(llm):
    async def inside():
        return llm.generate([[5]], GREEDY, use_tqdm=False)

    assert asyncio.run(inside())[0].token_ids == reference([5], 6)


def test_several_threads_may_use_it_at_once(llm):
    found = {}

    def ask(i):
        found[i] = llm.generate([[i + 1]], GREEDY, use_tqdm=False)[0].token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: reference([i + 1], 6) for i in range(8)}


def test_the_progress_bar_counts_requests(llm, capsys):
    llm.generate([[1], [2]], GREEDY)
    assert "2/2" in capsys.readouterr().err


def test_a_closed_llm_says_so_and_closing_twice_is_harmless(llm):
    llm.close()
    llm.close()
    with pytest.raises(EngineClosed, match="was closed"):
        llm.generate("a", GREEDY)


def test_a_failing_start_raises_and_leaves_no_thread():
    with pytest.raises(ConfigError):
        LLM(runner="kvhash", tokenizer="symbols", max_num_seqs=0)
    assert "headrace-llm" not in {thread.name for thread in threading.enumerate()}


def test_closing_ends_what_other_threads_wait_for():
    options = {"tokenizer": {"vocab_size": 512}}
    for _ in range(5):
        llm = LLM(runner="kvhash", tokenizer="symbols", max_model_len=100_000, num_kv_blocks=7000, options=options)
        errors = []

        def generate(llm=llm, errors=errors):
            try:
                llm.generate([[i] for i in range(20)], SamplingParams(max_tokens=90_000), use_tqdm=False)
            except EngineClosed as error:
                errors.append(error)

        threads = [threading.Thread(target=generate) for _ in range(2)]
        for thread in threads:
            thread.start()
        while llm.stats().num_running == 0:
            pass
        closers = [threading.Thread(target=llm.close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for thread in threads + closers:
            thread.join(60)
            assert not thread.is_alive()
        assert len(errors) == 2


@pytest.mark.parametrize("wrong", [5, None, b"abc"])
def test_what_is_no_list_of_prompts_is_refused(llm, wrong):
    with pytest.raises(InvalidPrompt, match="prompts is a"):
        llm.generate(wrong)
    with pytest.raises(InvalidPrompt, match="conversations"):
        llm.chat(5)

"""Draft tokens change how many steps a text takes, and nothing else."""

import pytest
import torch
from tiny_llama import save_folder, tiny_llama

from headrace import LLM, SamplingParams
from headrace.core.errors import ConfigError

REPETITIVE = "1 2 3 4 5\n" * 6


def outputs(llm, prompts, params):
    """Everything of each result that must not change, and the engine's counts of steps and drafts."""
    before = llm.stats()
    results = llm.generate(prompts, params, use_tqdm=False)
    after = llm.stats()
    seen = [
        (r.token_ids, r.text, r.finish_reason, r.stop_reason, r.logprobs, r.usage.completion_tokens) for r in results
    ]
    return seen, after.steps - before.steps, after.drafts


def mixed(max_tokens, **fields):
    """Greedy, sampled, penalised and with log probabilities, in turns."""
    kinds = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 7, "top_p": 0.9},
        {"temperature": 0, "logprobs": 2, "repetition_penalty": 1.2},
        {"temperature": 1.3, "seed": 3, "logprobs": 1, "top_k": 20, "min_tokens": 5},
    ]
    return [SamplingParams(max_tokens=max_tokens, **kind, **fields) for kind in kinds]


def hashes(num_drafts, **changes):
    """An engine that emits hashes of two ids only, so that drafts are right now and then."""
    options = {"runner": {"vocab_size": 3}, "tokenizer": {"vocab_size": 3}}
    given = {"max_model_len": 256, "num_kv_blocks": 24, "block_size": 4, "max_num_seqs": 6, **changes}
    return LLM(runner="kvhash", tokenizer="symbols", options=options, num_speculative_tokens=num_drafts, **given)


@pytest.mark.parametrize("scheduler", ["plain", "table"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_caching", [True, False])
def test_tokens_are_those_without_drafts_under_preemption_and_with_a_cache(scheduler, is_async, is_caching):
    prompts = [[i % 3, 1, 2, 0, 2] * (1 + i % 3) for i in range(12)]
    params = mixed(30, ignore_eos=True) * 3
    changes = {"scheduler": scheduler, "async_scheduling": is_async, "enable_prefix_caching": is_caching}
    with hashes(0, **changes) as off:
        expected, _, none = outputs(off, prompts, params)
    with hashes(4, **changes) as on:
        found, _, drafts = outputs(on, prompts, params)
        assert on.stats().preemptions > 0
        assert on.stats().kv.num_free == on.stats().kv.num_blocks
    assert found == expected
    assert none.num_drafts == 0
    assert 0 < drafts.num_accepted_tokens < drafts.num_draft_tokens


def smollm2_with(smollm2, num_drafts):
    return LLM(
        smollm2, runner="torch", deterministic=True, max_model_len=512, num_speculative_tokens=num_drafts, seed=0
    )


def test_smollm2_gives_the_same_tokens_with_drafts_and_repeats_a_text_in_fewer_steps(smollm2):
    prompts = ["The capital of France is", "one two three one two three one two", REPETITIVE, "def f(x):\n    return"]
    repeated = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with smollm2_with(smollm2, 0) as off:
        expected = outputs(off, prompts, mixed(12))[0]
        text, steps_without, _ = outputs(off, [REPETITIVE], repeated)
    with smollm2_with(smollm2, 4) as on:
        assert outputs(on, prompts, mixed(12))[0] == expected
        before = on.stats().drafts
        again, steps, after = outputs(on, [REPETITIVE], repeated)
    assert again == text
    proposed = after.num_draft_tokens - before.num_draft_tokens
    assert after.num_accepted_tokens - before.num_accepted_tokens > proposed / 2
    assert steps <= 0.7 * steps_without


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, one that is nearly the same, and one with another vocabulary."""
    model = tiny_llama()
    folder = tmp_path_factory.mktemp("models")
    paths = {"model": save_folder(model, folder / "model")}
    with torch.no_grad():
        model.lm_head.weight += 0.004 * torch.randn_like(model.lm_head.weight)
    paths["similar"] = save_folder(model, folder / "similar")
    paths["other"] = save_folder(tiny_llama(vocab_size=128), folder / "other")
    return paths


def tiny(folders, draft=None, runner="torch", **changes):
    options = {"tokenizer": {"vocab_size": 256}}
    if draft:
        options["proposer"] = {"model": str(folders[draft]), "runner": runner}
        changes |= {"proposer": "draft", "num_speculative_tokens": 3}
    given = {"max_model_len": 200, "num_kv_blocks": 40, "max_num_batched_tokens": 64, **changes}
    return LLM(folders["model"], runner=runner, tokenizer="symbols", options=options, deterministic=True, **given)


PROMPTS = [[(7 * i + j * j) % 256 for j in range(5 + 17 * i)] for i in range(5)]


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_a_second_model_saves_steps_and_changes_no_token(folders, runner):
    params = [*mixed(30), SamplingParams(temperature=0, max_tokens=3)]
    with tiny(folders, runner=runner) as off:
        expected, steps_without, _ = outputs(off, PROMPTS, params)
    for draft in ("model", "similar"):
        with tiny(folders, draft, runner) as on:
            found, steps, drafts = outputs(on, PROMPTS, params)
        assert found == expected
        assert drafts.num_accepted_tokens > drafts.num_draft_tokens / 2
        assert steps < 0.7 * steps_without


def test_a_draft_model_that_is_the_model_itself_is_always_right(folders):
    with tiny(folders, "model") as on:
        _, _, drafts = outputs(on, PROMPTS, SamplingParams(temperature=1, seed=5, max_tokens=41))
    assert drafts.num_accepted_tokens == drafts.num_draft_tokens > 0


def test_prompts_of_many_steps_and_cached_ones_get_drafts_too(folders):
    prompts = [[i % 251 for i in range(150)]] * 2
    with tiny(folders, "model", max_num_seqs=1) as on:
        _, _, drafts = outputs(on, prompts, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
        assert on.stats().kv.hits > 0
    assert drafts.num_accepted_tokens == drafts.num_draft_tokens > 0


def test_a_draft_model_with_another_vocabulary_is_refused(folders):
    with pytest.raises(ConfigError, match=r"options\.proposer\.model .* 128 tokens, the model has 256"):
        tiny(folders, "other")

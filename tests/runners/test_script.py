"""Runner script: given tokens, masks that fall through, and ordered faults."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.columns import floats, ints, pack_ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.messages import BindRow, RowSampling, RunStep, StepDone
from headrace.core.providers import RunnerContext
from headrace.runners.script import Fault, ScriptOptions, ScriptWorker, build

CONFIG = EngineConfig(max_model_len=64, num_kv_blocks=64)
Make = Callable[..., ScriptWorker]


@pytest.fixture
def make() -> Iterator[Make]:
    runners: list[ScriptWorker] = []

    def make(**options: Any) -> ScriptWorker:
        runner = build(RunnerContext(CONFIG, Path(), 8, time.monotonic), ScriptOptions(**options))
        assert isinstance(runner, ScriptWorker)
        runner.load()
        runners.append(runner)
        return runner

    yield make
    for runner in runners:
        runner.close()


def bind(row: int, prompt: list[int], generated: tuple[int, ...] = (), **sampling: Any) -> BindRow:
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, **sampling}
    return BindRow(row, pack_ints([*prompt, *generated]), len(prompt), 0, RowSampling(**values))


def run(runner: ScriptWorker, number: int, counts: dict[int, int], *bound: BindRow, reset: bool = False) -> StepDone:
    message = RunStep(number, pack_ints(list(counts)), pack_ints(list(counts.values())), bound, reset=reset)
    return runner.execute(message)


def generate(runner: ScriptWorker, num_tokens: int, *bound: BindRow) -> list[list[int]]:
    """Run these rows to so many tokens each."""
    rows: dict[int, list[int]] = {one.row: [] for one in bound}
    for number in range(1, num_tokens + 1):
        done = run(runner, number, dict.fromkeys(rows, 50), *(bound if number == 1 else ()))
        tokens = iter(ints(done.token_ids).tolist())
        for row, num_new in zip(rows, ints(done.num_new).tolist(), strict=True):
            rows[row] += [next(tokens) for _ in range(num_new)]
    return list(rows.values())


def test_every_request_emits_the_tokens_then_the_filler(make: Make) -> None:
    runner = make(tokens=[10813, 242, 218], filler=5)
    assert generate(runner, 5, bind(0, [1, 2, 3]), bind(3, [9])) == [[10813, 242, 218, 5, 5]] * 2


def test_chunks_of_a_prompt_emit_nothing(make: Make) -> None:
    runner = make(tokens=[7, 8])
    assert ints(run(runner, 1, {0: 2}, bind(0, [1, 2, 3])).num_new).tolist() == [0]
    assert ints(run(runner, 2, {0: 1}).token_ids).tolist() == [7]


def test_a_request_that_comes_back_goes_on_where_it_was(make: Make) -> None:
    assert generate(make(tokens=[7, 8, 9]), 1, bind(0, [1], generated=(7, 8))) == [[9]]


def test_masks_fall_through_the_choices_to_the_filler(make: Make) -> None:
    runner = make(tokens=[[2, 0], [2, 0], [2, 0]], filler=30)
    rows = [
        bind(0, [1]),
        bind(1, [1], bad_words=((2,),)),
        bind(2, [1], bad_words=((2,), (0,))),
        bind(3, [1], min_tokens=1, stop_ids=(2,)),
    ]
    assert generate(runner, 2, *rows) == [[2, 2], [0, 0], [30, 30], [0, 2]]


def test_sampling_takes_the_best_choice_too(make: Make) -> None:
    runner = make(tokens=[[7, 8], 9, 10])
    assert generate(runner, 3, bind(0, [1], temperature=1.0, seed=5)) == [[7, 9, 10]]


def test_a_filler_among_the_choices_keeps_its_place(make: Make) -> None:
    runner = make(tokens=[[3, 4], [4, 3, 5]], filler=3)
    assert generate(runner, 2, bind(0, [1]), bind(1, [1], bad_words=((3,),))) == [[3, 4], [4, 4]]


def test_logprobs_are_finite_and_prompts_get_theirs(make: Make) -> None:
    runner = make(tokens=[7])
    done = run(runner, 1, {0: 3}, bind(0, [1, 2, 3], logprobs=3, prompt_logprobs=1))
    assert done.logprobs is not None and done.prompt_logprobs is not None
    assert np.isfinite(floats(done.logprobs.logprobs)).all()
    assert ints(done.prompt_logprobs.positions).tolist() == [1, 2]


def test_a_step_leaves_nothing_behind_in_the_next_ones_logits(make: Make) -> None:
    runner = make(tokens=[7, 8], faults=[Fault("nan", index=0, prompt=1), Fault("minus_inf", index=0, prompt=2)])
    assert len(run(runner, 1, {0: 1, 1: 1, 2: 1}, bind(0, [1]), bind(1, [2]), bind(2, [3])).failed) == 2
    done = run(runner, 2, {0: 1, 1: 1}, bind(0, [1], logprobs=20), bind(1, [2], logprobs=20))
    assert done.logprobs is not None
    fresh = run(make(tokens=[7, 8]), 1, {0: 1, 1: 1}, bind(0, [1], logprobs=20), bind(1, [2], logprobs=20))
    assert done.logprobs == fresh.logprobs


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "problem"), [("nan", "NaN"), ("inf", "infinity"), ("minus_inf", "minus infinity")])
def test_D13_a_fault_of_logits_fails_the_row_of_its_prompt(kind: Any, problem: str, make: Make) -> None:
    runner = make(tokens=[7, 8, 9], faults=[Fault(kind, index=1, prompt=6)])
    run(runner, 1, {0: 1, 1: 1}, bind(0, [5]), bind(1, [6]))
    done = run(runner, 2, {0: 1, 1: 1})
    assert [failure.row for failure in done.failed] == [1]
    assert problem in done.failed[0].error.message
    assert ints(done.token_ids).tolist() == [8]


def test_nothing_gives_no_token_without_an_error_until_the_row_is_bound_again(make: Make) -> None:
    runner = make(tokens=[7, 8, 9], faults=[Fault("nothing", index=1)])
    run(runner, 1, {0: 1}, bind(0, [5]))
    for number in (2, 3):
        done = run(runner, number, {0: 1})
        assert (ints(done.num_new).tolist(), done.failed, done.error) == ([0], (), None)
    assert ints(run(runner, 4, {0: 9}, bind(0, [5], generated=(7,))).token_ids).tolist() == [8]


def test_raise_fails_the_step_with_its_number(make: Make) -> None:
    runner = make(faults=[Fault("raise", step=2)])
    run(runner, 1, {0: 1}, bind(0, [5]))
    done = run(runner, 2, {0: 1})
    assert done.error is not None and "step 2 failed" in done.error.message
    assert run(runner, 3, {0: 1}, bind(0, [5]), reset=True).error is None


def test_raise_hits_prefill_chunks_and_with_an_index_only_that_token(make: Make) -> None:
    assert run(make(faults=[Fault("raise")]), 1, {0: 1}, bind(0, [5, 6])).error is not None
    runner = make(faults=[Fault("raise", index=0)])
    assert run(runner, 1, {0: 1}, bind(0, [5, 6])).error is None
    assert run(runner, 2, {0: 1}).error is not None


def test_a_fault_hits_as_often_as_it_says(make: Make) -> None:
    runner = make(faults=[Fault("nan", index=0, times=2)])
    done = run(runner, 1, {row: 1 for row in range(4)}, *(bind(row, [5]) for row in range(4)))
    assert [failure.row for failure in done.failed] == [0, 1]
    assert run(runner, 2, {0: 1}, bind(0, [5])).failed == ()


@pytest.mark.parametrize("options", [{"tokens": [1, [2, 100]]}, {"filler": 100}, {"filler": -1}, {"tokens": [-1]}])
def test_ids_out_of_the_vocabulary_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(tokens\[\d\]|filler) is -?\d+, must be 0 to 99"):
        ScriptOptions(**{"filler": 5, "vocab_size": 100, **options})

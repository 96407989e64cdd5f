"""The example package of a logits processor, installed as users would."""

import sys
from pathlib import Path

import numpy as np
import pytest
from packages import EXAMPLES, install_example, run_own_tests

from headrace import LLM, SamplingParams
from headrace.cli.main import main
from headrace.core.errors import InvalidParameter

EXAMPLE = EXAMPLES / "headrace-no-repeat"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own."""
    return install_example(EXAMPLE.name, tmp_path_factory.mktemp("example"))


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package where Python finds it."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "headrace_no_repeat", raising=False)
    monkeypatch.chdir(tmp_path)


def generate(**arguments: object) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=6, logits_processors={"no-repeat": arguments})
    options = {"runner": {"tokens": [[5, 6, 7]] * 6, "vocab_size": 2048}, "tokenizer": {"vocab_size": 2048}}
    with LLM(runner="script", tokenizer="symbols", options=options, max_model_len=64, num_kv_blocks=16) as llm:
        return llm.generate([[9, 9]], params)[0].token_ids


def test_requests_that_name_it_do_not_repeat_themselves(installed: None) -> None:
    assert generate(size=100) == [5] * 6
    assert generate(size=2) == [5, 5, 6, 5, 7, 5]


def test_wrong_arguments_are_refused_before_anything_runs(installed: None) -> None:
    with pytest.raises(InvalidParameter, match=r"logits_processors.no-repeat.size is 0: expected `int` >= 1"):
        generate(size=0)
    with pytest.raises(
        InvalidParameter, match=r"logits_processors.no-repeat.length is unknown; known: counts_prompt, size"
    ):
        generate(size=2, length=2)


def test_the_plugin_is_listed_with_package_and_version(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "no-repeat" in line)
    assert line.split()[:4] == ["logits_processor", "no-repeat", "headrace-no-repeat", "1.0"]


def test_transformers_rules_out_the_same(installed: None) -> None:
    import torch
    from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

    build, options = _module().build, _module().Options
    rng = np.random.default_rng(0)
    for size in (1, 2, 3):
        token_ids = rng.integers(0, 4, 30).astype(np.int32)
        ours = np.zeros(10, dtype=np.float32)
        build(None, options(size))(token_ids, 0, ours)
        theirs = NoRepeatNGramLogitsProcessor(size)(torch.tensor(token_ids[None].astype(np.int64)), torch.zeros(1, 10))
        np.testing.assert_array_equal(ours, theirs[0].numpy())


def _module():
    import headrace_no_repeat

    return headrace_no_repeat


def test_its_own_tests_pass(site: Path) -> None:
    run_own_tests(EXAMPLE.name, site)

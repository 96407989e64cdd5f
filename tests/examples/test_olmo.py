"""The example package of a model family, installed as users would, against transformers on the same model."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packages import EXAMPLES, install_example, run_own_tests
from tiny_llama import reference_logits, save_folder

from headrace import LLM, SamplingParams
from headrace.cli.main import main
from headrace.core.errors import UnsupportedModel

EXAMPLE = EXAMPLES / "headrace-olmo"
PROMPTS = [np.random.default_rng(length).integers(0, 256, length).tolist() for length in (1, 9, 40)]
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "clip_qkv": 0.9,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own."""
    return install_example(EXAMPLE.name, tmp_path_factory.mktemp("example"))


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package where Python finds it."""
    monkeypatch.syspath_prepend(site)
    for module in ("headrace_olmo", "headrace_olmo_model"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def source() -> Any:
    """Make a tiny random model in transformers."""
    torch.manual_seed(3)
    config = transformers.OlmoConfig(**SIZES, attn_implementation="eager")
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def folder(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(source, tmp_path_factory.mktemp("models") / "olmo")


def engine(folder: Path, **options: Any) -> LLM:
    given = {
        "runner": "torch",
        "tokenizer": "symbols",
        "num_kv_blocks": 64,
        "threads": 1,
        "dtype": "float32",
        **options,
    }
    return LLM(folder, options={"tokenizer": {"vocab_size": 256, "eos_ids": []}}, **given)


@pytest.mark.parametrize("deterministic", [False, True])
def test_tokens_and_logprobs_are_those_of_transformers(
    deterministic: bool, installed: None, folder: Path, source: Any
) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=0)
    with engine(folder, deterministic=deterministic) as llm:
        results = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, result in zip(PROMPTS, results, strict=True):
        logits = torch.tensor(reference_logits(source, prompt + result.token_ids))[len(prompt) - 1 : -1]
        assert result.token_ids == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1).max(-1).values.tolist()
        found = [entry[token].logprob for entry, token in zip(result.logprobs, result.token_ids, strict=True)]
        assert found == pytest.approx(expected, abs=1e-4)


def test_another_runner_refuses_it_by_name(installed: None, folder: Path) -> None:
    with (
        pytest.raises(UnsupportedModel, match="runner native can't run olmo; choose runner torch"),
        engine(folder, runner="native"),
    ):
        pass


def test_it_is_listed_with_package_and_version(installed: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if " olmo " in line)
    assert line.split()[:3] == ["olmo", "headrace-olmo", "1.0"]


def test_its_own_tests_pass(site: Path) -> None:
    run_own_tests(EXAMPLE.name, site)

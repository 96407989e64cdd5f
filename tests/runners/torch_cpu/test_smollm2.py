"""The real model, step by step: transformers' log probabilities, and the same bits in any batch."""

import json
from pathlib import Path

import numpy as np
import pytest
from batches import Blocks, load_torch, log_softmax, run, run_chunks
from reference import GOLDEN

from headrace.runners.torch_cpu.model import TorchModel

NUM_FORCED = 16
PARIS = 7042
THE_CAPITAL_OF_FRANCE_IS = [504, 3575, 282, 4649, 314]
RNG = np.random.default_rng(13)
PROMPT = RNG.integers(17, 49152, 37).tolist()
MATES = [RNG.integers(17, 49152, int(length)).tolist() for length in RNG.integers(1, 20, 32)]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> TorchModel:
    return load_torch(smollm2, max_model_len=1024)


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.verify)])
def fixed_model(smollm2: Path, request: pytest.FixtureRequest) -> TorchModel:
    """With one thread, as threads that wait for each other take minutes on a busy machine."""
    return load_torch(smollm2, max_model_len=1024, deterministic=True, threads=request.param)


def test_H01_the_capital_of_france_is_paris(model: TorchModel) -> None:
    (logits,) = run(model, [(Blocks(8).row(THE_CAPITAL_OF_FRANCE_IS), 5)])
    assert PARIS in np.argsort(-logits[-1])[:5]


def test_tokens_and_log_probabilities_of_forced_text_are_those_of_transformers(model: TorchModel) -> None:
    check_forced_text(model)


def test_deterministic_ones_are_those_of_transformers_too(fixed_model: TorchModel) -> None:
    check_forced_text(fixed_model)


def check_forced_text(model: TorchModel) -> None:
    """Run 6 prompts in one batch, each with the reference's own continuation."""
    golden, blocks = json.loads(GOLDEN.read_text())[:6], Blocks(200)
    rows = [blocks.row(entry["prompt_ids"] + entry["ids"][: NUM_FORCED - 1]) for entry in golden]
    for entry, logits in zip(golden, run(model, [(row, len(row.token_ids)) for row in rows]), strict=True):
        logprobs = log_softmax(logits[-NUM_FORCED:])
        ids = entry["ids"][:NUM_FORCED]
        np.testing.assert_allclose(logprobs[range(NUM_FORCED), ids], entry["logprobs"][:NUM_FORCED], atol=1e-4)
        behind = logprobs.max(axis=-1) - logprobs[range(NUM_FORCED), ids]
        assert behind.max() < 1e-3, entry["prompt"]


@pytest.fixture(scope="module")
def alone(fixed_model: TorchModel) -> np.ndarray:
    return run_chunks(fixed_model, Blocks(8).row(PROMPT), len(PROMPT))


@pytest.mark.parametrize("chunk", [7, 16])
def test_chunks_of_a_prompt_give_the_same_bits(chunk: int, fixed_model: TorchModel, alone: np.ndarray) -> None:
    assert np.array_equal(run_chunks(fixed_model, Blocks(8).row(PROMPT), chunk), alone)


@pytest.mark.parametrize(("num_rows", "place"), [(8, 5), (33, 32)])
def test_prefill_and_decode_among_others_give_the_same_bits(
    num_rows: int, place: int, fixed_model: TorchModel, alone: np.ndarray
) -> None:
    blocks = Blocks(200)
    rows = [blocks.row(mate) for mate in MATES[: num_rows - 1]]
    rows.insert(place, blocks.row(PROMPT))
    prefilled = [row for row in rows if len(row.token_ids) > 1]
    found = run(fixed_model, [(row, len(row.token_ids) - 1) for row in prefilled])
    assert np.array_equal(found[prefilled.index(rows[place])], alone[:-1])
    assert np.array_equal(run(fixed_model, [(row, 1) for row in rows])[place], alone[-1:])


@pytest.mark.verify
def test_every_token_alone_gives_the_same_bits(fixed_model: TorchModel, alone: np.ndarray) -> None:
    assert np.array_equal(run_chunks(fixed_model, Blocks(8).row(PROMPT), 1), alone)

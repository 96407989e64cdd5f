"""The deterministic forward pass: bits of a row depend on nothing but the row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import Blocks, Row, context_of, load_torch, run, run_chunks

from headrace.core.errors import ConfigError
from headrace.runners.loading.load import load_model
from headrace.runners.models.layers import TILES
from headrace.runners.torch_cpu.model import TorchModel
from headrace.runners.torch_cpu.tiled import TILE, check_rows_alike, in_tiles

RNG = np.random.default_rng(11)
PROMPT = RNG.integers(0, 256, 75).tolist()
MATES = [RNG.integers(0, 256, int(length)).tolist() for length in RNG.integers(1, 30, 32)]


CONFIGS = [("llama_folder", "float32", 1), ("smol_gguf", "float32", 3), ("smol_gguf", "bfloat16", 1)]


@pytest.fixture(params=CONFIGS, scope="module", ids=str)
def model(request: pytest.FixtureRequest) -> TorchModel:
    fixture, dtype, threads = request.param
    return load_torch(request.getfixturevalue(fixture), deterministic=True, dtype=dtype, threads=threads)


@pytest.fixture(scope="module")
def alone(model: TorchModel) -> np.ndarray:
    """Logits of the prompt, run as a whole with nothing else in the batch."""
    return run_chunks(model, Blocks(8).row(PROMPT), len(PROMPT))


@pytest.mark.parametrize("chunk", [1, 7, 16, 40])
def test_chunks_of_a_prompt_give_the_same_bits(chunk: int, model: TorchModel, alone: np.ndarray) -> None:
    assert np.array_equal(run_chunks(model, Blocks(8, seed=1).row(PROMPT), chunk), alone)


@pytest.mark.parametrize(("num_rows", "place"), [(2, 0), (2, 1), (8, 0), (8, 5), (33, 0), (33, 17), (33, 32)])
def test_a_prompt_among_others_gives_the_same_bits(
    num_rows: int, place: int, model: TorchModel, alone: np.ndarray
) -> None:
    blocks = Blocks(250)
    rows = [blocks.row(mate) for mate in MATES[: num_rows - 1]]
    rows.insert(place, blocks.row(PROMPT))
    assert np.array_equal(run(model, [(row, len(row.token_ids)) for row in rows])[place], alone)


@pytest.mark.parametrize(("num_rows", "place"), [(8, 0), (8, 5), (33, 17), (33, 32)])
def test_a_decode_among_decodes_gives_the_same_bits(
    num_rows: int, place: int, model: TorchModel, alone: np.ndarray
) -> None:
    blocks = Blocks(250)
    rows = [blocks.row(mate) for mate in MATES[: num_rows - 1]]
    rows.insert(place, blocks.row(PROMPT))
    run(model, [(row, len(row.token_ids) - 1) for row in rows if len(row.token_ids) > 1])
    assert np.array_equal(run(model, [(row, 1) for row in rows])[place], alone[-1:])


def test_a_prefix_that_another_row_computed_gives_the_same_bits(model: TorchModel, alone: np.ndarray) -> None:
    blocks = Blocks(64)
    other = blocks.row([*PROMPT[:48], *MATES[0]])
    run_chunks(model, other, 13)
    mate = blocks.row(MATES[1])
    row = Row(PROMPT, [*other.table[:3], *blocks.row(PROMPT[48:]).table], computed=48)
    found = run(model, [(mate, len(mate.token_ids)), (row, len(PROMPT) - 48)])[1]
    assert np.array_equal(found, alone[48:])


def test_logits_may_be_asked_for_in_any_number_and_order(model: TorchModel, alone: np.ndarray) -> None:
    run(model, [(Blocks(8).row(PROMPT), len(PROMPT))])
    for indices in ([74], [3, 74, 0], list(range(74, -1, -1)), []):
        assert np.array_equal(model.logits(np.array(indices, dtype=np.int32)), alone[indices])


@pytest.mark.parametrize("num_rows", [0, 1, 31, 32, 33, 96])
def test_a_stage_sees_tiles_of_one_shape_and_its_rows_come_back(num_rows: int) -> None:
    seen = []

    def stage(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((tuple(x.shape), tuple(y.shape)))
        return x + 1, y.unsqueeze(1)

    x, y = torch.randn(num_rows, 3), torch.arange(num_rows)
    plus, column = in_tiles(stage, x, y)
    assert torch.equal(plus, x + 1)
    assert torch.equal(column, y.unsqueeze(1))
    assert set(seen) == {((TILE, 3), (TILE,))}


def test_a_library_that_rounds_equal_rows_differently_is_refused(llama_folder: Path) -> None:
    def uneven(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        product = torch.nn.functional.linear(x, weight)
        product[-1] *= 1 + 1e-6
        return product

    def built(linear: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]):
        ops = TILES._replace(linear=linear)
        return load_model(context_of(llama_folder), torch.float32, ops, 1).model

    with torch.inference_mode():
        check_rows_alike(built(TILES.linear))
        with pytest.raises(ConfigError, match="deterministic is true, but this machine's maths library"):
            check_rows_alike(built(uneven))

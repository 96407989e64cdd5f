"""Shared layers against their definitions."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from headrace.runners.models.layers import Rotary, gelu_pieces, gelu_tanh, linear_any, rms_norm, silu_pieces
from headrace.runners.models.rope import Rope


@pytest.mark.parametrize("num_rows", [0, 1, 2, 8, 9, 40])
def test_a_linear_layer_of_any_batch_is_the_product_with_the_transposed_weight(num_rows: int) -> None:
    x, weight = torch.randn(num_rows, 48), torch.randn(20, 48)
    found = linear_any(x, weight)
    assert found.is_contiguous()
    torch.testing.assert_close(found, (x.double() @ weight.double().t()).float(), atol=1e-4, rtol=1e-4)


def test_rotary_turns_halves_as_transformers_does() -> None:
    positions = torch.tensor([0, 3, 3, 500])
    x = torch.randn(4, 2, 16)
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16)
    angles = torch.cat([torch.outer(positions.float(), frequencies)] * 2, dim=-1)
    expected, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin(), unsqueeze_dim=1)
    found = Rotary(16, Rope(10000.0), 512, torch.float32)(x, positions)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_position_beyond_the_table_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError), match="range"):
        Rotary(16, Rope(10000.0), 8, torch.float32)(torch.zeros(1, 1, 16), torch.tensor([8]))


def test_rms_norm_gives_rows_a_root_mean_square_of_one() -> None:
    found = rms_norm(torch.randn(5, 64) * 37, torch.ones(64), 1e-6)
    np.testing.assert_allclose(found.square().mean(-1).sqrt(), 1, atol=1e-5)


@pytest.mark.parametrize("columns", [7, 512, 1300])
def test_silu_in_pieces_gives_equal_rows_equal_bits(columns: int) -> None:
    row = torch.linspace(-9, 9, columns)
    found = silu_pieces(row.repeat(32, 1))
    assert torch.equal(found, found[:1].expand_as(found))
    torch.testing.assert_close(found[0], functional.silu(row))


@pytest.mark.parametrize("columns", [7, 512, 1300])
def test_gelu_in_pieces_gives_equal_rows_equal_bits(columns: int) -> None:
    row = torch.linspace(-9, 9, columns)
    found = gelu_pieces(row.repeat(32, 1))
    assert torch.equal(found, found[:1].expand_as(found))
    torch.testing.assert_close(found[0], gelu_tanh(row))

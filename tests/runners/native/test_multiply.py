"""Matrix products in every format, shape remainder and mode against float64, and their independence of batch mates."""

import numpy as np
import pytest
from native_models import PLAIN, QUANTS, Kernels, random_rows

RNG = np.random.default_rng(3)
SHAPES = {"Q4_K": [(33, 512)], "Q6_K": [(33, 512)]}
FAST = ("Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K")
ERROR = {"accurate": 1e-4, "fast": 2e-2}
"""Of a product, relative to the norm of its factors."""


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels()


def shapes(kind: str) -> list[tuple[int, int]]:
    if kind in PLAIN:
        return [(1, 1), (16, 64), (17, 33), (50, 700)]
    return [(1, QUANTS[kind]), (16, 2 * QUANTS[kind]), (37, 5 * QUANTS[kind])]


CASES = [(kind, n, k) for kind in (*PLAIN, *QUANTS) for n, k in shapes(kind)]


@pytest.mark.parametrize(("kind", "n", "k"), CASES)
def test_a_row_is_read_as_the_reference_reads_it(kind: str, n: int, k: int, kernels: Kernels) -> None:
    raw, values = random_rows(kind, n, k)
    for row in range(0, n, 7):
        np.testing.assert_array_equal(kernels.read_row(raw[row], kind, k), values[row])


@pytest.mark.parametrize("mode", ["accurate", "fast"])
@pytest.mark.parametrize(("kind", "n", "k"), CASES)
def test_products_of_any_number_of_rows_are_right(kind: str, n: int, k: int, mode: str, kernels: Kernels) -> None:
    raw, values = random_rows(kind, n, k)
    x = RNG.standard_normal((13, k), dtype=np.float32)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    norms = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1)[None] + 1e-3
    limit = ERROR[mode if kind in FAST else "accurate"]
    for rows in range(1, 14):
        found = kernels.multiply(raw, kind, x[:rows], mode)
        assert (np.abs(found - exact[:rows]) / norms[:rows]).max() < limit, rows


@pytest.mark.parametrize("mode", ["accurate", "fast"])
@pytest.mark.parametrize("kind", [*PLAIN, *QUANTS])
def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(kind: str, mode: str, kernels: Kernels) -> None:
    raw, _ = random_rows(kind, 37, 1280)
    x = RNG.standard_normal((211, 1280), dtype=np.float32)
    together = kernels.multiply(raw, kind, x, mode)
    for row in (0, 5, 96, 210):
        np.testing.assert_array_equal(kernels.multiply(raw, kind, x[row : row + 1], mode)[0], together[row])
    np.testing.assert_array_equal(kernels.multiply(raw, kind, x[40:80], mode), together[40:80])


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q6_K"])
def test_results_do_not_depend_on_the_number_of_threads(kind: str, kernels: Kernels) -> None:
    raw, _ = random_rows(kind, 200, 512)
    x = RNG.standard_normal((20, 512), dtype=np.float32)
    np.testing.assert_array_equal(Kernels(threads=3).multiply(raw, kind, x), kernels.multiply(raw, kind, x))


@pytest.mark.parametrize("stored", PLAIN)
@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q4_K"])
def test_weights_are_stored_in_another_format_on_demand(kind: str, stored: str, kernels: Kernels) -> None:
    raw, values = random_rows(kind, 20, 256)
    ones = np.eye(256, dtype=np.float32)
    found = kernels.multiply(raw, kind, ones, stored=stored).T
    error = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8}[stored]
    np.testing.assert_allclose(found, values, rtol=error, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("mode", ["accurate", "fast"])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_an_input_that_is_not_finite_shows_in_its_row_only(kind: str, mode: str, bad: float, kernels: Kernels) -> None:
    raw, _ = random_rows(kind, 20, 64)
    x = RNG.standard_normal((5, 64), dtype=np.float32)
    sound = kernels.multiply(raw, kind, x, mode)
    x[2, 40] = bad
    found = kernels.multiply(raw, kind, x, mode)
    assert not np.isfinite(found[2]).any()
    np.testing.assert_array_equal(found[[0, 1, 3, 4]], sound[[0, 1, 3, 4]])


def test_inputs_of_any_size_are_scaled() -> None:
    kernels = Kernels()
    raw, values = random_rows("Q4_0", 16, 96)
    for size in (0.0, 1e-38, 1e-20, 1.0, 1e20):
        x = (RNG.standard_normal((2, 96)) * size).astype(np.float32)
        np.testing.assert_allclose(kernels.multiply(raw, "Q4_0", x), x @ values.T, rtol=1e-2, atol=size * 1e-2 + 1e-29)

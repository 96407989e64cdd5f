"""Random numbers, against published vectors and a table that every runner must reproduce bit by bit."""

import numpy as np
import pytest

from headrace.runners.philox import philox, uniforms

KNOWN_ANSWERS = [  # counter, key, result: Random123, tests/kat_vectors, philox4x32 10
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
UNIFORMS = [  # seed, position, number
    (0, 0, "0x1.989fa35785a70p-2"),
    (0, 1, "0x1.f1c99948b9640p-1"),
    (0, 17, "0x1.ac99bb8c6888cp-2"),
    (0, 8191, "0x1.1083a97f65a4ap-2"),
    (1, 0, "0x1.c7d00ce1ca141p-1"),
    (1, 1, "0x1.58102837bf8b9p-1"),
    (1, 17, "0x1.3ce348ff7a434p-2"),
    (1, 8191, "0x1.3f0fda84149a6p-2"),
    (42, 0, "0x1.39d5e0a6efea9p-1"),
    (42, 1, "0x1.f9b6424ea774dp-1"),
    (42, 17, "0x1.8be75b6782818p-4"),
    (42, 8191, "0x1.12c93787d7c40p-5"),
    (-1, 0, "0x1.ca91dc24551d0p-2"),
    (-1, 17, "0x1.bbc80fbae316ap-2"),
    (2**63 - 1, 0, "0x1.973a7d4c9f5f4p-3"),
    (2**63 - 1, 8191, "0x1.a9b421cb8441ep-1"),
    (-(2**63) + 1, 1, "0x1.f5aad95472abcp-3"),
    (1234567890123456789, 17, "0x1.ebc33b02d8804p-1"),
    (1234567890123456789, 8191, "0x1.70d33755d8d46p-2"),
]


def column(words: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in words.split()], dtype=np.uint64)


def seeds(*values: int) -> np.ndarray:
    return np.array([value % 2**64 for value in values], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_published_vectors(counter: str, key: str, result: str) -> None:
    assert np.array_equal(philox(column(counter), column(key)), column(result))


@pytest.mark.parametrize(("seed", "position", "number"), UNIFORMS)
def test_seed_and_position_give_the_number_that_all_runners_share(seed: int, position: int, number: str) -> None:
    assert float(uniforms(seeds(seed), [position])[0]) == float.fromhex(number)


def test_a_number_does_not_depend_on_those_computed_beside_it() -> None:
    together = uniforms(seeds(*(seed for seed, _, _ in UNIFORMS)), [position for _, position, _ in UNIFORMS])
    assert together.tolist() == [float.fromhex(number) for _, _, number in UNIFORMS]


def test_numbers_are_uniform_in_0_to_1() -> None:
    numbers = uniforms(seeds(*[7] * 20_000), np.arange(20_000))
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, 1 in 1000

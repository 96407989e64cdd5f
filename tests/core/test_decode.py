from typing import Literal

import msgspec
import pytest

from headrace.core.decode import decode, suggest
from headrace.core.errors import ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    weight: float = 1.0
    mode: Literal["near", "far"] = "near"


class Options(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner | None = None
    weights: dict[str, float] = {}
    inners: dict[str, Inner] = {}
    pairs: tuple[tuple[str, int], ...] = ()


def test_sound_values_become_the_struct() -> None:
    assert decode({"weights": {"a": 2}}, Options, "options.policy") == Options(weights={"a": 2.0})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"weights": {"b": 1, "a": "x"}}, "options.policy.weights.a is 'x': expected `float`, got `str`"),
        ({"inner": {"weight": []}}, "options.policy.inner.weight: expected `float`, got `array`"),
        ({"inners": {"k": {"mode": "up"}}}, "options.policy.inners.k.mode is 'up': must be one of 'near', 'far'"),
        ({"pairs": [["a", 1], ["b", None]]}, "options.policy.pairs[1][1] is None: expected `int`, got `null`"),
        (
            {"wieghts": {}},
            "options.policy.wieghts is unknown; did you mean 'weights'? known: inner, inners, pairs, weights",
        ),
        ({"inner": {"x": 1}}, "options.policy.inner.x is unknown; known: mode, weight"),
        (3, "options.policy is 3: expected `object`, got `int`"),
    ],
)
def test_the_error_names_the_full_path_and_the_value(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(value, Options, "options.policy")
    assert str(caught.value) == message


def test_a_long_value_is_cut_short_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        decode({"weights": {"a": "x" * 1000}}, Options, "o")
    assert len(str(caught.value)) < 200


def test_a_suggestion_lists_every_name() -> None:
    assert suggest("zzz", ["b", "a"]) == "known: a, b"
    assert suggest("zzz", []) == "known: none"

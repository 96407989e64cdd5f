import pytest
from families import FAMILIES
from fuzz_models import config

from headrace.core.errors import ModelFileDamaged
from headrace.runners.models.registry import find_family


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("window", [0, 1 << 31])
def test_H03_a_window_that_no_runner_can_count_is_damage(family: str, window: int) -> None:
    values = config(family) | {"sliding_window": window}
    with pytest.raises(ModelFileDamaged, match="window"):
        find_family("config.json", str(values["model_type"]), FAMILIES).read_folder("config.json", values)


def test_H03_an_infinite_rope_base_is_damage() -> None:
    values = config("llama") | {"rope_parameters": {"rope_type": "default", "rope_theta": float("inf")}}
    with pytest.raises(ModelFileDamaged, match="rope_theta"):
        find_family("config.json", "llama", FAMILIES).read_folder("config.json", values)


@pytest.mark.parametrize("name", ["hidden_size", "query_pre_attn_scalar"])
def test_H03_a_negative_size_that_roots_are_taken_of_is_damage(name: str) -> None:
    values = config("gemma3") | {name: -64}
    with pytest.raises(ModelFileDamaged):
        find_family("config.json", str(values["model_type"]), FAMILIES).read_folder("config.json", values)

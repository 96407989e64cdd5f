"""Finding an architecture by its name."""

import pytest

from headrace.core.errors import UnsupportedModel
from headrace.runners.models.registry import FAMILIES, find_family


def test_a_built_in_architecture_is_found_by_its_name() -> None:
    assert find_family("a model", "llama") is FAMILIES["llama"]


@pytest.mark.parametrize("name", ["mamba", "", "Llama"])
def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(name: str) -> None:
    with pytest.raises(
        UnsupportedModel,
        match=rf"a model: architecture {name!r} isn't built in; known are gemma3, ",
    ):
        find_family("a model", name)

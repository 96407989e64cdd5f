"""Finding an architecture by its name."""

from pathlib import Path

import pytest
from families import FAMILIES

from headrace.core.errors import PluginError, UnsupportedModel
from headrace.runners.models import llama
from headrace.runners.models.registry import find_family


def test_an_architecture_is_found_by_its_name() -> None:
    assert find_family("a model", "llama", FAMILIES) is llama.FAMILY


@pytest.mark.parametrize("name", ["mamba", "", "Llama"])
def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        find_family("a model", name, FAMILIES)
    assert str(caught.value).startswith(f"a model: no plugin provides architecture {name!r}; ")
    assert str(caught.value).endswith("known: gemma3, gemma3_text, gpt2, llama, mistral, qwen2, qwen3")


def test_what_is_no_family_is_refused() -> None:
    with pytest.raises(PluginError, match="model_family 'odd' is a dict, must be a Family"):
        find_family("a model", "odd", {"odd": dict})


def test_every_module_of_a_family_is_provided() -> None:
    files = Path(llama.__file__).parent.glob("*.py")
    modules = {file.stem for file in files if "FAMILY = Family(" in file.read_text()}
    assert modules == {family().read_folder.__module__.rpartition(".")[2] for family in FAMILIES.values()}

"""Finding the family of a model by its architecture, among those that plugins provide; ours are in builtin.py there."""

from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.decode import suggest
from headrace.core.errors import PluginError, UnsupportedModel
from headrace.runners.models.contract import Family


def find_family(where: str, architecture: str, families: Mapping[str, Callable[[], Any]]) -> Family:
    """Return the family of this name; `where` names the model in errors.

    families: what returns each, by architecture. Raises UnsupportedModel listing what is known, PluginError.
    """
    if architecture not in families:
        raise UnsupportedModel(
            f"{where}: no plugin provides architecture {architecture!r:.80}; {suggest(architecture, families)}"
        )
    family = families[architecture]()
    if not isinstance(family, Family):
        raise PluginError(
            f"model_family {architecture!r} is a {type(family).__name__}, must be a Family of headrace.runners.models"
        )
    return family

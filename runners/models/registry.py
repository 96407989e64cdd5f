"""Which architectures are built in: one line here and one file each."""

from headrace.core.errors import UnsupportedModel
from headrace.runners.models import llama
from headrace.runners.models.contract import Family

FAMILIES = {family.name: family for family in (llama.FAMILY,)}


def find_family(where: str, architecture: str) -> Family:
    """Return the family of this name; `where` names the model in errors.

    Raises UnsupportedModel listing what is known.
    """
    family = FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(f"{where}: architecture {architecture!r:.80} isn't built in; known are {known}")
    return family

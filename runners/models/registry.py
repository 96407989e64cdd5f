"""Which architectures are built in: one line here and one file each."""

from headrace.core.errors import UnsupportedModel
from headrace.runners.models import gemma3, gpt2, llama, mistral, qwen2, qwen3
from headrace.runners.models.contract import Family

BUILT_IN = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY, gpt2.FAMILY)
FAMILIES = {name: family for family in BUILT_IN for name in (family.name, *family.aliases)}


def find_family(where: str, architecture: str) -> Family:
    """Return the family of this name; `where` names the model in errors.

    Raises UnsupportedModel listing what is known.
    """
    family = FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(f"{where}: architecture {architecture!r:.80} isn't built in; known are {known}")
    return family

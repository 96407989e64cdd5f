"""OLMo for Headrace: how a model of a new architecture is read, and which parameters it has. No torch.

OLMo is the shared decoder with two changes: its layer norms have no weights, and queries, keys and values may be cut
off at a limit. headrace_olmo_model.py computes. Source: Groeneveld et al. 2024 (OLMo), section 2.
"""

from typing import TYPE_CHECKING, Any

from headrace.core.errors import UnsupportedModel
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.providers import Provider, TextContext
from headrace.runners.models import decoder
from headrace.runners.models.checks import Positive, checked
from headrace.runners.models.contract import Family, Parameter
from headrace.runners.models.decoder import DecoderConfig
from headrace.runners.models.reading import FolderConfig, decoder_config, plain_values

if TYPE_CHECKING:
    from headrace_olmo_model import Olmo
    from torch import Tensor

    from headrace.runners.models.layers import Ops

NORM_EPS = 1e-5
"""No file says it."""


class OlmoFolder(FolderConfig, frozen=True, kw_only=True):
    """What config.json of OLMo says beside that."""

    rms_norm_eps: float = NORM_EPS
    clip_qkv: Positive | None = None


class OlmoConfig(DecoderConfig, frozen=True, kw_only=True):
    """Sizes and constants of one model."""

    clip_qkv: Positive | None = None
    """Queries, keys and values are cut off at plus and minus this."""


def read_folder(where: str, values: dict[str, Any]) -> OlmoConfig:
    """Read the config from a folder's config.json; `where` names it in errors."""
    found = checked(where, OlmoFolder, values)
    config = decoder_config(where, plain_values(where, found))
    return OlmoConfig(**{name: getattr(config, name) for name in config.__struct_fields__}, clip_qkv=found.clip_qkv)


def read_gguf(file: GGUFFile) -> OlmoConfig:
    """Refuse GGUF files."""
    raise UnsupportedModel(f"{file.path}: headrace-olmo reads folders only")


def parameters(config: OlmoConfig) -> list[Parameter]:
    """List the shared decoder's parameters without those of its norms."""
    return [parameter for parameter in decoder.parameters(config) if "norm" not in parameter.name]


def build(config: OlmoConfig, weights: "dict[str, Tensor]", ops: "Ops", max_positions: int) -> "Olmo":
    """Build the model in torch."""
    from headrace_olmo_model import Olmo

    return Olmo(config, weights, ops, max_positions)


FAMILY = Family("olmo", read_gguf, read_folder, parameters, build)


def provide(context: TextContext, options: None) -> Family:
    """Return the family when a model of it is loaded."""
    return FAMILY


def headrace_model_families() -> list[Provider]:
    """Provide architecture `olmo`."""
    return [Provider("olmo", provide, summary="OLMo: layer norms without weights")]

"""Which models the native library runs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.core.errors import UnsupportedModel
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig
from headrace.runners.models.decoder import build as build_decoder
from headrace.runners.models.registry import find_family
from headrace.runners.native.tensors import TensorFile

LANES = 8
"""Numbers of one vector: heads are whole vectors, and K's blocks are padded to whole vectors of tokens."""


class ReadModel(NamedTuple):
    """A model's family and what its files say of it."""

    family: Family
    config: DecoderConfig


def read_config(file: TensorFile, families: Mapping[str, Callable[[], Any]]) -> ReadModel:
    """Read a model's config. Raises ModelFileDamaged, and UnsupportedModel if the library can't run it."""
    family = find_family(str(file.path), file.architecture, families)
    config = file.config(family)
    if not isinstance(config, DecoderConfig) or family.build is not build_decoder:
        raise UnsupportedModel(f"{file.path}: runner native can't run {family.name}; choose runner torch")
    if config.head_dim % LANES:
        raise UnsupportedModel(
            f"{file.path}: heads have {config.head_dim} numbers, runner native needs a multiple of {LANES};"
            " choose runner torch"
        )
    return ReadModel(family, config)

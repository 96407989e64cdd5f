"""Mistral: Llama whose layers see a sliding window. Source: Jiang et al. 2023."""

from typing import Any

from headrace.runners.models.checks import checked
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig, build, parameters
from headrace.runners.models.llama import IGNORED, read_gguf
from headrace.runners.models.reading import FolderConfig, decoder_config, plain_values, windows_of


def read_folder(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Read the config from a folder's config.json."""
    found = checked(where, FolderConfig, values)
    return decoder_config(where, plain_values(where, found, windows_of(found)))


FAMILY = Family("mistral", read_gguf, read_folder, parameters, build, IGNORED)

"""Qwen3: queries and keys are normalised head by head. Source: Yang et al. 2025."""

from typing import Any

from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig, build, parameters
from headrace.runners.models.llama import IGNORED
from headrace.runners.models.qwen2 import qwen_values
from headrace.runners.models.reading import decoder_config, gguf_values


def read_folder(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Read the config from a folder's config.json; heads have 128 numbers unless it says else."""
    return decoder_config(where, qwen_values(where, {"head_dim": 128} | values) | {"has_qk_norm": True})


def read_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the config from a GGUF file."""
    return decoder_config(str(file.path), gguf_values(file) | {"has_qk_norm": True})


FAMILY = Family("qwen3", read_gguf, read_folder, parameters, build, IGNORED)

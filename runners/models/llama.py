"""Llama, SmolLM and alike: the shared decoder as it is."""

from typing import Any

from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import checked
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig, build, parameters
from headrace.runners.models.reading import FolderConfig, decoder_config, gguf_values, plain_values

IGNORED = ("*.rotary_emb.inv_freq", "rope_freqs.weight")
"""Tensors that say what the config says too; rope_freqs.weight is read with it."""


def read_folder(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Read the config from a folder's config.json."""
    return decoder_config(where, plain_values(where, checked(where, FolderConfig, values)))


def read_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the config from a GGUF file; Mistral's files call themselves llama too."""
    return decoder_config(str(file.path), gguf_values(file) | {"has_interleaved_heads": True})


FAMILY = Family("llama", read_gguf, read_folder, parameters, build, IGNORED)

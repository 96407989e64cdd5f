"""Qwen2 and Qwen2.5: queries, keys and values have biases, later layers may have a window. Source: Yang et al. 2024."""

from typing import Any

from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import checked
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig, build, parameters
from headrace.runners.models.llama import IGNORED
from headrace.runners.models.reading import FolderConfig, decoder_config, gguf_values, plain_values, windows_of


class QwenFolder(FolderConfig, frozen=True, kw_only=True):
    """What config.json of Qwen says beside that."""

    use_sliding_window: bool = False
    """Without it sliding_window means nothing."""
    max_window_layers: int = 0
    """Layers at the start that see everything."""


def qwen_values(where: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a DecoderConfig that Qwen2 and Qwen3 share. Raises UnsupportedModel, ModelFileDamaged."""
    found = checked(where, QwenFolder, values)
    windows = windows_of(found, found.max_window_layers) if found.use_sliding_window else None
    return plain_values(where, found, windows)


def read_folder(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Read the config from a folder's config.json."""
    return decoder_config(where, qwen_values(where, values) | {"has_qkv_bias": True})


def read_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the config from a GGUF file."""
    return decoder_config(str(file.path), gguf_values(file) | {"has_qkv_bias": True})


FAMILY = Family("qwen2", read_gguf, read_folder, parameters, build, IGNORED)

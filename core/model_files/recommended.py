"""The sampling parameters that a model's makers recommend. Nothing applies them unasked."""

from pathlib import Path

from headrace.core.errors import InvalidParameter, ModelFileDamaged
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.model_files.metadata import read_json
from headrace.core.params import SamplingParams

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What may be recommended: generation_config.json shares these names with SamplingParams."""
_GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
}


def recommended_params(model: Path) -> SamplingParams:
    """Return what a GGUF file or a folder's generation_config.json recommends; what neither says has its default.

    Raises ModelFileDamaged if a value is out of its limits.
    """
    file = model / "generation_config.json" if model.is_dir() else model
    if model.is_dir():
        config = read_json(file) if file.is_file() else {}
        found = {name: config[name] for name in RECOMMENDED if config.get(name) is not None}
    else:
        with GGUFFile(model) as gguf:
            found = {name: gguf.metadata[key] for key, name in _GGUF_KEYS.items() if key in gguf.metadata}
    try:
        return SamplingParams(**found)
    except InvalidParameter as error:
        raise ModelFileDamaged(f"{file}: {error}") from error

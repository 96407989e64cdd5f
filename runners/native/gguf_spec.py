"""Read a model's spec from the metadata of a GGUF file."""

from typing import Any

import numpy as np

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import checked, require
from headrace.runners.native.rope import Rope
from headrace.runners.native.spec import LayerSpec, ModelSpec

_GEMMA_PATTERN = 6
_GEMMA_LOCAL_BASE = 10000.0
_DIVISORS = "rope_freqs.weight"


def read_gguf(file: GGUFFile) -> ModelSpec:
    """Read the spec. Raises ModelFileDamaged, UnsupportedModel."""
    where, architecture = str(file.path), file.value("general.architecture", str)
    if architecture not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedModel(
            f"{where}: architecture {architecture!r:.80} isn't built in for GGUF files; known are {known}"
        )
    values = _common(file, architecture)
    values |= _FAMILIES[architecture](file, values)
    spec = checked(where, ModelSpec, values)
    spec.check(where)
    return spec


def _common(file: GGUFFile, name: str) -> dict[str, Any]:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileDamaged(f"{file.path}: tensor token_embd.weight is missing")
    num_heads = file.value(f"{name}.attention.head_count", int)
    hidden = file.value(f"{name}.embedding_length", int)
    num_layers = file.value(f"{name}.block_count", int)
    head_dim = file.value(f"{name}.attention.key_length", int, hidden // max(num_heads, 1))
    for key, supported in ((f"{name}.rope.dimension_count", head_dim), (f"{name}.expert_count", 0)):
        require(str(file.path), key, file.value(key, int, supported), supported)
    window = file.value(f"{name}.attention.sliding_window", int, 0) or None
    require(str(file.path), "the number of layers", 1 <= num_layers <= 1 << 10, True)
    return {
        "num_layers": num_layers,
        "hidden": hidden,
        "num_heads": num_heads,
        "num_kv_heads": file.value(f"{name}.attention.head_count_kv", int, num_heads),
        "head_dim": head_dim,
        "inner": file.value(f"{name}.feed_forward_length", int),
        "vocab": embedding.shape[0],
        "context_length": file.value(f"{name}.context_length", int),
        "norm_eps": file.value(f"{name}.attention.layer_norm_rms_epsilon", float),
        "query_scale": max(head_dim, 1) ** -0.5,
        "ropes": (_rope(file, name),),
        "layers": (LayerSpec(window),) * num_layers,
        "tied_head": "output.weight" not in file.tensors,
    }


def _rope(file: GGUFFile, name: str) -> Rope:
    def scaling(key: str, default: float) -> float:
        return file.value(f"{name}.rope.scaling.{key}", float, default)

    kind = file.value(f"{name}.rope.scaling.type", str, "none")
    return checked(
        str(file.path),
        Rope,
        {
            "rope_theta": file.value(f"{name}.rope.freq_base", float, 10000.0),
            "rope_type": "default" if kind == "none" else kind,
            "factor": scaling("factor", 1.0),
            "original_max_position_embeddings": file.value(f"{name}.rope.scaling.original_context_length", int, 0)
            or file.value(f"{name}.context_length", int),
            "beta_fast": scaling("yarn_beta_fast", 32.0),
            "beta_slow": scaling("yarn_beta_slow", 1.0),
            "divisors": _divisors(file),
        },
    )


def _divisors(file: GGUFFile) -> tuple[float, ...] | None:
    if _DIVISORS not in file.tensors:
        return None
    require(str(file.path), f"the type of {_DIVISORS}", file.tensors[_DIVISORS].type, "F32")
    return tuple(file.raw(_DIVISORS).view(np.float32).tolist())


def _llama(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any]:
    return {"interleaved_heads": True}


def _qwen2(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any]:
    return {"has_qkv_bias": True}


def _qwen3(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any]:
    return {"has_qk_norm": True}


def _gemma3(file: GGUFFile, values: dict[str, Any]) -> dict[str, Any]:
    window = file.value("gemma3.attention.sliding_window", int)
    pattern = file.value("gemma3.attention.sliding_window_pattern", int, _GEMMA_PATTERN)
    local = Rope(file.value("gemma3.rope.freq_base_swa", float, _GEMMA_LOCAL_BASE))
    return {
        "ropes": (*values["ropes"], local),
        "layers": gemma_layers(values["num_layers"], window, pattern),
        "gate": "gelu",
        "embedding_scale": values["hidden"] ** 0.5,
        "has_qk_norm": True,
        "has_post_norms": True,
    }


def gemma_layers(num_layers: int, window: int, pattern: int) -> tuple[LayerSpec, ...]:
    """List Gemma's layers: every pattern-th one sees everything, with rope 0; the others a window, with rope 1."""
    is_global = [(index + 1) % pattern == 0 for index in range(num_layers)]
    return tuple(LayerSpec() if sees_all else LayerSpec(window, 1) for sees_all in is_global)


_FAMILIES = {"llama": _llama, "qwen2": _qwen2, "qwen3": _qwen3, "gemma3": _gemma3}

"""How families of the shared decoder read their config: what they have in common in config.json and GGUF metadata."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import LayerCount, Positive, Size, checked, require
from headrace.runners.models.decoder import DecoderConfig, DecoderLayerConfig
from headrace.runners.models.rope import Rope, read_rope

DEFAULT_THETA = 10000.0
_DIVISORS = "rope_freqs.weight"


class FolderConfig(Struct, frozen=True, kw_only=True):
    """What config.json says of all families; fields that aren't here change nothing."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: LayerCount
    num_attention_heads: Size
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    rope_theta: Positive = DEFAULT_THETA
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """Newer files say here what rope_theta and rope_scaling said."""
    sliding_window: Size | None = None
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    quantization_config: dict[str, Any] | None = None


def folder_values(where: str, found: FolderConfig) -> dict[str, Any]:
    """Return the values of a DecoderConfig but for its layers and ropes. Raises UnsupportedModel."""
    require(where, "attention_bias", found.attention_bias, False)
    require(where, "mlp_bias", found.mlp_bias, False)
    require(where, "quantization_config", found.quantization_config, None)
    head_dim = found.head_dim or found.hidden_size // found.num_attention_heads
    return {
        "vocab_size": found.vocab_size,
        "hidden_size": found.hidden_size,
        "intermediate_size": found.intermediate_size,
        "num_layers": found.num_hidden_layers,
        "num_heads": found.num_attention_heads,
        "num_kv_heads": found.num_key_value_heads or found.num_attention_heads,
        "head_dim": head_dim,
        "context_length": found.max_position_embeddings,
        "rms_eps": found.rms_norm_eps,
        "attention_scale": max(head_dim, 1) ** -0.5,
        "tied_head": found.tie_word_embeddings,
    }


def plain_values(where: str, found: FolderConfig, windows: Sequence[int | None] | None = None) -> dict[str, Any]:
    """Return the values of a DecoderConfig whose layers have SiLU, one rope, and these windows or none.

    Raises UnsupportedModel, ModelFileDamaged.
    """
    require(where, "hidden_act", found.hidden_act, "silu")
    defaults = {"original_max_position_embeddings": found.max_position_embeddings}
    rope = read_rope(where, defaults | (found.rope_parameters or found.rope_scaling or {}), found.rope_theta)
    return folder_values(where, found) | {
        "ropes": (rope,),
        "layers": tuple(map(DecoderLayerConfig, windows or [None] * found.num_hidden_layers)),
    }


def windows_of(found: FolderConfig, first_windowed: int = 0) -> list[int | None]:
    """List each layer's window: as layer_types says, else that of all layers from first_windowed on."""
    layers = range(found.num_hidden_layers)
    if found.layer_types is None:
        return [found.sliding_window if index >= first_windowed else None for index in layers]
    return [found.sliding_window if kind == "sliding_attention" else None for kind in found.layer_types]


def gguf_values(file: GGUFFile) -> dict[str, Any]:
    """Return the values of a DecoderConfig from a GGUF file; the vocabulary's size is the embedding's."""
    where, name = str(file.path), file.value("general.architecture", str)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileDamaged(f"{where}: tensor token_embd.weight is missing")
    num_heads = file.value(f"{name}.attention.head_count", int)
    num_layers = file.value(f"{name}.block_count", int)
    hidden_size = file.value(f"{name}.embedding_length", int)
    head_dim = file.value(f"{name}.attention.key_length", int, hidden_size // max(num_heads, 1))
    for key, supported in (("rope.dimension_count", head_dim), ("expert_count", 0)):
        require(where, f"{name}.{key}", file.value(f"{name}.{key}", int, supported), supported)
    window = file.value(f"{name}.attention.sliding_window", int, 0) or None
    checked(where, _LayerCount, {"num_layers": num_layers})
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": file.value(f"{name}.feed_forward_length", int),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": file.value(f"{name}.attention.head_count_kv", int, num_heads),
        "head_dim": head_dim,
        "context_length": file.value(f"{name}.context_length", int),
        "rms_eps": file.value(f"{name}.attention.layer_norm_rms_epsilon", float),
        "attention_scale": max(head_dim, 1) ** -0.5,
        "tied_head": "output.weight" not in file.tensors,
        "ropes": (_gguf_rope(file, name, head_dim),),
        "layers": (DecoderLayerConfig(window),) * num_layers,
    }


class _LayerCount(Struct, frozen=True):
    """Checked before a list of so many layers is made."""

    num_layers: LayerCount


def _gguf_rope(file: GGUFFile, name: str, head_dim: int) -> Rope:
    def scaling(key: str, default: float) -> float:
        return file.value(f"{name}.rope.scaling.{key}", float, default)

    kind = file.value(f"{name}.rope.scaling.type", str, "none")
    length = file.value(f"{name}.rope.scaling.original_context_length", int, 0)
    values = {
        "rope_type": "default" if kind == "none" else kind,
        "factor": scaling("factor", 1.0),
        "original_max_position_embeddings": length or file.value(f"{name}.context_length", int),
        "beta_fast": scaling("yarn_beta_fast", 32.0),
        "beta_slow": scaling("yarn_beta_slow", 1.0),
    }
    theta = file.value(f"{name}.rope.freq_base", float, DEFAULT_THETA)
    rope = read_rope(str(file.path), values | {"rope_theta": theta}, theta)
    return replace(rope, divisors=_divisors(file, head_dim))


def _divisors(file: GGUFFile, head_dim: int) -> tuple[float, ...] | None:
    """Return what files of Llama 3 divide the frequencies by."""
    info = file.tensors.get(_DIVISORS)
    if info is None:
        return None
    require(str(file.path), f"the type of {_DIVISORS}", info.type, "F32")
    if info.shape != (head_dim // 2,):
        raise ModelFileDamaged(f"{file.path}: {_DIVISORS} is {info.shape}, must be {(head_dim // 2,)}")
    return tuple(file.raw(_DIVISORS).view(np.float32).tolist())


def decoder_config(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Build the config, checking all that can be said without tensors. Raises ModelFileDamaged."""
    # Parts that are built already get checked too; what was computed from a negative size is complex, and no float.
    config = checked(where, DecoderConfig, to_builtins(values, enc_hook=str))
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ModelFileDamaged(
            f"{where}: {config.num_heads} heads of {config.head_dim} numbers with {config.num_kv_heads} KV heads:"
            " heads must be a multiple of KV heads, and their size even"
        )
    if len(config.layers) != config.num_layers:
        raise ModelFileDamaged(f"{where}: layer_types has {len(config.layers)} entries for {config.num_layers} layers")
    return config

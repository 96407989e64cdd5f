"""Read a model's spec from config.json of a Hugging Face folder."""

from typing import Any, Literal

from msgspec import Struct

from headrace.core.errors import UnsupportedModel
from headrace.runners.models.checks import LayerCount, Positive, Size, checked, require
from headrace.runners.native.gguf_spec import gemma_layers
from headrace.runners.native.rope import Rope, read_rope
from headrace.runners.native.spec import LayerSpec, ModelSpec

_GEMMA_PATTERN = 6
_DEFAULT_THETA = 10000.0
_GEMMA_THETA = 1_000_000.0


class FolderConfig(Struct, frozen=True):
    """What config.json says, of all families; fields that aren't here change nothing."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: LayerCount
    num_attention_heads: Size
    max_position_embeddings: Size
    rms_norm_eps: Positive
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: bool | None = None
    rope_theta: Positive | None = None
    rope_local_base_freq: Positive = _DEFAULT_THETA
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """Newer files say here what rope_theta and rope_scaling said; Gemma's for each type of layer."""
    hidden_act: str | None = None
    hidden_activation: str | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    quantization_config: dict[str, Any] | None = None
    sliding_window: Size | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    sliding_window_pattern: Size = _GEMMA_PATTERN
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = None
    query_pre_attn_scalar: Positive = 256.0
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None


def read_folder(where: str, values: dict[str, Any]) -> ModelSpec:
    """Read the spec; `where` names the file in errors. Raises ModelFileDamaged, UnsupportedModel."""
    architecture = values.get("model_type")
    if architecture not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedModel(f"{where}: model_type {architecture!r:.80} isn't built in; known are {known}")
    config = checked(where, FolderConfig, values)
    for key in ("quantization_config", "final_logit_softcapping", "attn_logit_softcapping"):
        require(where, key, getattr(config, key), None)
    for key in ("mlp_bias", "use_bidirectional_attention"):
        require(where, key, bool(getattr(config, key)), False)
    found = _common(config) | _FAMILIES[architecture](where, config)
    spec = checked(where, ModelSpec, found)
    if len(spec.layers) != spec.num_layers:
        raise UnsupportedModel(f"{where}: layer_types has {len(spec.layers)} entries for {spec.num_layers} layers")
    spec.check(where)
    return spec


def _common(config: FolderConfig) -> dict[str, Any]:
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return {
        "num_layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": head_dim,
        "inner": config.intermediate_size,
        "vocab": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "query_scale": max(head_dim, 1) ** -0.5,
        "tied_head": bool(config.tie_word_embeddings),
    }


def _plain(where: str, config: FolderConfig, window: int | None) -> dict[str, Any]:
    """Layers alike but for their windows, SiLU, one rope."""
    require(where, "hidden_act", config.hidden_act or "silu", "silu")
    values = config.rope_parameters or config.rope_scaling or {}
    types = (
        config.layer_types or ("full_attention" if window is None else "sliding_attention",) * config.num_hidden_layers
    )
    return {
        "ropes": (read_rope(where, values, config.rope_theta or _DEFAULT_THETA),),
        "layers": tuple(LayerSpec(window if kind == "sliding_attention" else None) for kind in types),
    }


def _llama(where: str, config: FolderConfig) -> dict[str, Any]:
    require(where, "attention_bias", bool(config.attention_bias), False)
    return _plain(where, config, None)


def _mistral(where: str, config: FolderConfig) -> dict[str, Any]:
    return _plain(where, config, config.sliding_window)


def _qwen(where: str, config: FolderConfig) -> dict[str, Any]:
    if not config.use_sliding_window or config.sliding_window is None:
        return _plain(where, config, None)
    window = config.sliding_window
    if config.layer_types is not None:
        return _plain(where, config, window)
    layers = [LayerSpec(window if i >= config.max_window_layers else None) for i in range(config.num_hidden_layers)]
    return _plain(where, config, window) | {"layers": tuple(layers)}


def _qwen2(where: str, config: FolderConfig) -> dict[str, Any]:
    return _qwen(where, config) | {"has_qkv_bias": True}


def _qwen3(where: str, config: FolderConfig) -> dict[str, Any]:
    require(where, "attention_bias", bool(config.attention_bias), False)
    return _qwen(where, config) | {"has_qk_norm": True}


def _gemma3(where: str, config: FolderConfig) -> dict[str, Any]:
    require(where, "hidden_activation", config.hidden_activation or "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    require(where, "attention_bias", bool(config.attention_bias), False)
    window = config.sliding_window or 4096
    layers = gemma_layers(config.num_hidden_layers, window, config.sliding_window_pattern)
    if config.layer_types is not None:
        layers = tuple(LayerSpec() if kind == "full_attention" else LayerSpec(window, 1) for kind in config.layer_types)
    return {
        "ropes": _gemma_ropes(where, config),
        "layers": layers,
        "gate": "gelu",
        "query_scale": config.query_pre_attn_scalar**-0.5,
        "embedding_scale": config.hidden_size**0.5,
        "norm_offset": 1.0,
        "has_qk_norm": True,
        "has_post_norms": True,
        "tied_head": config.tie_word_embeddings is not False,
    }


def _gemma_ropes(where: str, config: FolderConfig) -> tuple[Rope, Rope]:
    by_type = config.rope_parameters or {"full_attention": config.rope_scaling}
    everywhere, local = by_type.get("full_attention") or {}, by_type.get("sliding_attention") or {}
    return (
        read_rope(where, everywhere, config.rope_theta or _GEMMA_THETA),
        read_rope(where, local, config.rope_local_base_freq),
    )


_FAMILIES = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
}

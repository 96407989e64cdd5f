"""Gemma 3, its text models: most layers see a window, with a rope of their own; norms around everything.

Source: Gemma Team 2025 (Gemma 3 Technical Report), section 2. Norm weights lack 1 in folders, not in GGUF files.
"""

from typing import Any, Literal

from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import Positive, Size, checked, require
from headrace.runners.models.contract import Family
from headrace.runners.models.decoder import DecoderConfig, DecoderLayerConfig, build, parameters
from headrace.runners.models.llama import IGNORED
from headrace.runners.models.reading import DEFAULT_THETA, FolderConfig, decoder_config, folder_values, gguf_values
from headrace.runners.models.rope import Rope, read_rope

_PATTERN = 6
"""Every so many layers one sees everything."""
_GLOBAL_THETA = 1_000_000.0


class GemmaFolder(FolderConfig, frozen=True, kw_only=True):
    """What config.json of Gemma 3 says beside that, with the defaults of the released models."""

    head_dim: int = 256
    tie_word_embeddings: bool = True
    rope_theta: Positive = _GLOBAL_THETA
    rope_local_base_freq: Positive = DEFAULT_THETA
    sliding_window: Size = 4096
    sliding_window_pattern: Size = _PATTERN
    query_pre_attn_scalar: Positive = 256.0
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None


def read_folder(where: str, values: dict[str, Any]) -> DecoderConfig:
    """Read the config from a folder's config.json."""
    require(where, "model_type", values.get("model_type"), "gemma3_text")
    found = checked(where, GemmaFolder, values)
    require(where, "final_logit_softcapping", found.final_logit_softcapping, None)
    require(where, "attn_logit_softcapping", found.attn_logit_softcapping, None)
    require(where, "use_bidirectional_attention", bool(found.use_bidirectional_attention), False)
    is_global = [(index + 1) % found.sliding_window_pattern == 0 for index in range(found.num_hidden_layers)]
    if found.layer_types is not None:
        is_global = [kind == "full_attention" for kind in found.layer_types]
    own = {
        "ropes": _folder_ropes(where, found),
        "layers": _layers(is_global, found.sliding_window),
        "attention_scale": found.query_pre_attn_scalar**-0.5,
        "norm_offset": 1.0,
    }
    return decoder_config(where, folder_values(where, found) | _shared(found.hidden_size) | own)


def _folder_ropes(where: str, found: GemmaFolder) -> tuple[Rope, Rope]:
    by_type = found.rope_parameters or {"full_attention": found.rope_scaling}
    everywhere, local = by_type.get("full_attention") or {}, by_type.get("sliding_attention") or {}
    return read_rope(where, everywhere, found.rope_theta), read_rope(where, local, found.rope_local_base_freq)


def read_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the config from a GGUF file, which leaves out what all models of Gemma 3 have in common."""
    values = gguf_values(file)
    window = file.value("gemma3.attention.sliding_window", int)
    pattern = file.value("gemma3.attention.sliding_window_pattern", int, _PATTERN)
    local = Rope(file.value("gemma3.rope.freq_base_swa", float, DEFAULT_THETA))
    is_global = [(index + 1) % max(pattern, 1) == 0 for index in range(values["num_layers"])]
    own = {"ropes": (*values["ropes"], local), "layers": _layers(is_global, window)}
    return decoder_config(str(file.path), values | _shared(values["hidden_size"]) | own)


def _shared(hidden_size: int) -> dict[str, Any]:
    return {
        "activation": "gelu",
        "embedding_scale": hidden_size**0.5,
        "has_qk_norm": True,
        "has_post_norms": True,
    }


def _layers(is_global: list[bool], window: int) -> tuple[DecoderLayerConfig, ...]:
    return tuple(DecoderLayerConfig() if sees_all else DecoderLayerConfig(window, rope=1) for sees_all in is_global)


FAMILY = Family("gemma3", read_gguf, read_folder, parameters, build, IGNORED)

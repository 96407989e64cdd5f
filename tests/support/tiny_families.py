"""Tiny random models of every family, made by transformers, saved as GGUF files under the gguf library's own names."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tiny_llama import interleave, weights_of, write_gguf

WINDOW = 24
_SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
_GPT2 = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.15}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _SIZES),
    "mistral": ("Mistral", {**_SIZES, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2", _SIZES),
    "qwen2-window": (
        "Qwen2",
        {**_SIZES, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", {**_SIZES, "head_dim": 24}),
    "gemma3": (
        "Gemma3",
        {
            **_SIZES,
            "tie_word_embeddings": True,
            "num_hidden_layers": 7,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "initializer_range": 0.08,
        },
    ),
    "gpt2": ("GPT2", _GPT2),
}
"""Name of transformers' classes and the config by our name for it."""

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def tiny(name: str, **changed: Any) -> transformers.PreTrainedModel:
    """Make a model with biases and norm weights as random as its matrices."""
    kind, sizes = FAMILIES[name]
    config_class = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = config_class(**{**sizes, **special, "attn_implementation": "eager", **changed})
    torch.manual_seed(7)
    model = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if part.endswith(".bias"):
                weight.uniform_(-0.5, 0.5)
            elif "norm" in part or ".ln_" in part:
                weight.uniform_(-0.5, 0.5) if kind == "Gemma3" else weight.uniform_(0.5, 1.5)
    return model


def save_family_gguf(
    model: transformers.PreTrainedModel,
    path: Path,
    fields: dict[str, Any] | None = None,
    divisors: np.ndarray | None = None,
) -> Path:
    """Save a model as llama.cpp's converter does, in F32, with these fields more, and divisors of its frequencies."""
    config = model.config
    name = {"gemma3_text": "gemma3", "mistral": "llama"}.get(config.model_type, config.model_type)
    arch = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    if divisors is not None:
        tensors["rope_freqs.weight"] = (divisors, gguf.GGMLQuantizationType.F32)
    for ours, weight in weights_of(model).items():
        stored = names.get_name(ours, try_suffixes=(".weight", ".bias"))
        assert stored is not None, ours
        converted = np.ascontiguousarray(_converted(name, ours, weight, config))
        tensors[stored] = (converted, gguf.GGMLQuantizationType.F32)
    return write_gguf(path, {**_fields(name, config), **(fields or {})}, tensors, name)


def _converted(name: str, ours: str, weight: np.ndarray, config: Any) -> np.ndarray:
    if name == "gemma3" and "norm" in ours:
        return weight + 1
    if name == "gpt2" and weight.ndim == 2 and ".c_" in ours:
        return weight.T
    if name == "llama" and ours.endswith(("q_proj.weight", "k_proj.weight")):
        return interleave(weight, config.num_attention_heads if "q_proj" in ours else config.num_key_value_heads)
    return weight


def _fields(name: str, config: Any) -> dict[str, Any]:
    if name == "gpt2":
        values = {
            "block_count": config.n_layer,
            "context_length": config.n_positions,
            "embedding_length": config.n_embd,
            "feed_forward_length": 4 * config.n_embd,
            "attention.head_count": config.n_head,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
        return {f"gpt2.{key}": value for key, value in values.items()}
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if hasattr(config, "head_dim") else 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": 1e6 if name == "gemma3" else 10000.0,
    }
    if config.model_type in ("mistral", "gemma3_text"):
        values["attention.sliding_window"] = config.sliding_window
    return {f"{name}.{key}": value for key, value in values.items()}

"""Tiny random Llama models made by transformers, saved as folders and as GGUF files."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tiny_llama(heads: int = 4, kv_heads: int = 2, head_dim: int = 16, **changed: Any) -> transformers.LlamaForCausalLM:
    """Make a model whose logits spread over several units; norm weights are random too."""
    sizes = {
        "vocab_size": 256,
        "hidden_size": heads * head_dim,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changed})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


@torch.no_grad()
def reference_logits(model: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    """Return transformers' (len, vocab_size) logits for a whole sequence."""
    return model(torch.tensor([token_ids])).logits[0].float().numpy()


def weights_of(model: transformers.PreTrainedModel) -> dict[str, np.ndarray]:
    """Return what a file of this model holds: no head if it is tied."""
    weights = {name: weight.detach().float().numpy() for name, weight in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def gguf_name(name: str) -> str:
    """Translate a tensor's name, as llama.cpp's converter does."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    index, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order rows of Q or K as GGUF files of Llama have them: each head's two halves in turns."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weight.shape)


def gguf_tensors(model: transformers.PreTrainedModel, quant: str) -> dict[str, tuple[np.ndarray, Any]]:
    """Return the model's tensors as a GGUF file stores them: data and type; vectors stay F32."""
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    tensors = {}
    for name, weight in weights_of(model).items():
        stored = gguf_name(name)
        kind = gguf.GGMLQuantizationType[quant if weight.ndim == 2 else "F32"]
        part = stored.split(".")[-2]
        ordered = interleave(weight, heads[part]) if part in heads else weight
        tensors[stored] = (gguf.quants.quantize(np.ascontiguousarray(ordered), kind), kind)
    return tensors


def gguf_fields(model: transformers.PreTrainedModel) -> dict[str, Any]:
    """Return the metadata that a GGUF file of this model has."""
    config = model.config
    return {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": config.head_dim,
    }


def write_gguf(
    path: Path, fields: dict[str, Any], tensors: dict[str, tuple[np.ndarray, Any]], architecture: str = "llama"
) -> Path:
    """Write a GGUF file by the gguf library."""
    writer = gguf.GGUFWriter(path, architecture)
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in fields.items():
        adders[type(value)](key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def save_gguf(model: transformers.PreTrainedModel, path: Path, quant: str = "F32") -> Path:
    """Save a model as a GGUF file whose matrices have this type."""
    return write_gguf(path, gguf_fields(model), gguf_tensors(model, quant))


def save_folder(model: transformers.PreTrainedModel, path: Path, **options: Any) -> Path:
    """Save a model as a Hugging Face folder."""
    model.save_pretrained(path, **options)
    return path

"""Sound model files with weights of a few kilobytes and tokenizers of every kind, for the fuzzer to change."""

import json
import struct
from typing import Any

import numpy as np
from ggufs import CHATML, MERGES, SPECIAL, GGUFBuilder, byte_characters
from piecefiles import piece_file

SPACE = "\u2581"
VOCAB_SIZE = 300
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, CONTEXT = 32, 4, 2, 8, 48, 64

CHARSMAP = struct.pack("<I", 1024) + bytes(1024) + b"a\0"
"""A compiled normalisation that changes nothing: a double array of 256 empty units."""


def shapes() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return GGUF name and shape of each tensor of a tiny Llama of one layer, by its name in folders."""
    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": ("token_embd.weight", (VOCAB_SIZE, HIDDEN)),
        "model.norm.weight": ("output_norm.weight", (HIDDEN,)),
        layer + "input_layernorm.weight": ("blk.0.attn_norm.weight", (HIDDEN,)),
        layer + "self_attn.q_proj.weight": ("blk.0.attn_q.weight", (HEADS * HEAD_DIM, HIDDEN)),
        layer + "self_attn.k_proj.weight": ("blk.0.attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
        layer + "self_attn.v_proj.weight": ("blk.0.attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN)),
        layer + "self_attn.o_proj.weight": ("blk.0.attn_output.weight", (HIDDEN, HEADS * HEAD_DIM)),
        layer + "post_attention_layernorm.weight": ("blk.0.ffn_norm.weight", (HIDDEN,)),
        layer + "mlp.gate_proj.weight": ("blk.0.ffn_gate.weight", (INNER, HIDDEN)),
        layer + "mlp.up_proj.weight": ("blk.0.ffn_up.weight", (INNER, HIDDEN)),
        layer + "mlp.down_proj.weight": ("blk.0.ffn_down.weight", (HIDDEN, INNER)),
    }


def pieces(count: int) -> list[tuple[str, float, int]]:
    """Make a SentencePiece vocabulary of so many tokens: text, score and kind."""
    found = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<b>", 0.0, 4)]
    found += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = [SPACE, "h", "e", "l", "o", SPACE + "h", "he", "lo", "ll", "llo", "hello", SPACE + "hello"]
    found += [(word, -1.0 - index, 1) for index, word in enumerate(words)]
    return found + [(f"[PAD{index}]", -1000.0, 5) for index in range(count - len(found))]


def gguf_keys(model: str) -> dict[str, Any]:
    """Return the metadata of a GGUF file with a tokenizer of this model: gpt2, llama or t5."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": VOCAB_SIZE,
        "general.sampling.temp": 0.5,
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    if model == "gpt2":
        tokens = [*SPECIAL, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
        kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
        columns = {"tokens": tokens, "token_type": kinds, "merges": MERGES, "pre": "smollm"}
    else:
        tokens, scores, kinds = map(list, zip(*pieces(VOCAB_SIZE), strict=True))
        columns = {"tokens": tokens, "scores": scores, "token_type": kinds, "add_space_prefix": model == "llama"}
    if model == "t5":
        columns |= {"remove_extra_whitespaces": True, "precompiled_charsmap": list(CHARSMAP)}
    return keys | {f"tokenizer.ggml.{name}": value for name, value in columns.items()}


def tiny_gguf(keys: dict[str, Any]) -> bytes:
    """Make a GGUF file with these keys and the weights of a tiny Llama."""
    builder = GGUFBuilder()
    for name, value in keys.items():
        builder.raw_key(name, *value) if isinstance(value, tuple) else builder.key(name, value)
    for name, shape in shapes().values():
        builder.tensor(name, list(reversed(shape)), np.full(shape, 0.1, "<f4").tobytes())
    return builder.build()


def safetensors() -> bytes:
    """Make the weights of a tiny Llama."""
    header, data = {}, b""
    for name, (_, shape) in shapes().items():
        raw = np.full(shape, 0.1, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def folder_files() -> dict[str, bytes]:
    """Make the files of a model folder."""
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "eos_token_id": [2, 0],
    }
    vocab = {token: index for index, token in enumerate([*SPECIAL, *byte_characters()])}
    vocab |= {merge.replace(" ", ""): len(vocab) + index for index, merge in enumerate(MERGES)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(SPECIAL)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "post_processor": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": [merge.split(" ") for merge in MERGES]},
    }
    generation = {"eos_token_id": [2, 0], "temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1}
    tokenizer_config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHATML}
    files: dict[str, Any] = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": generation,
    }
    encoded = {name: json.dumps(content).encode() for name, content in files.items()}
    return encoded | {"model.safetensors": safetensors()}


def piece_files() -> dict[str, bytes]:
    """Make the files of a model folder whose tokenizer is SentencePiece's."""
    files = folder_files()
    del files["tokenizer.json"]
    added = {str(VOCAB_SIZE): {"content": "<|end|>", "special": True}}
    config = {"add_bos_token": True, "legacy": False, "added_tokens_decoder": added, "chat_template": CHATML}
    files["tokenizer_config.json"] = json.dumps(config).encode()
    return files | {"tokenizer.model": piece_file(pieces(VOCAB_SIZE), charsmap=CHARSMAP)}


def sound_models() -> dict[str, dict[str, bytes]]:
    """Return the files of each model that is changed here, by a name."""
    models = {model: {"model.gguf": tiny_gguf(gguf_keys(model))} for model in ("gpt2", "llama", "t5")}
    return models | {"folder": folder_files(), "pieces": piece_files()}

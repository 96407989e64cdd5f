"""Sound model files with weights of some kilobytes, of every family and with every kind of tokenizer, to be changed."""

import json
import struct
from typing import Any

import numpy as np
from ggufs import CHATML, MERGES, SPECIAL, GGUFBuilder, byte_characters
from piecefiles import piece_file

SPACE = "\u2581"
VOCAB_SIZE = 300
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, CONTEXT, LAYERS = 64, 4, 2, 16, 96, 64, 2
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt2")
QUANTS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34)}
"""GGUF type, elements and bytes of a block."""
CHARSMAP = struct.pack("<I", 1024) + bytes(1024) + b"a\0"
"""A compiled normalisation that changes nothing: a double array of 256 empty units."""

Shape = tuple[int, ...]


def tensors(family: str) -> list[tuple[str, str, Shape]]:
    """List name in folders, name in GGUF files and GGUF shape of each tensor; heads are tied to the embedding."""
    if family == "gpt2":
        return _gpt2_tensors()
    found: list[tuple[str, str, Shape]] = [
        ("model.embed_tokens.weight", "token_embd.weight", (VOCAB_SIZE, HIDDEN)),
        ("model.norm.weight", "output_norm.weight", (HIDDEN,)),
    ]
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows: list[tuple[str, str, Shape]] = [
        ("self_attn.q_proj.weight", "attn_q.weight", (queries, HIDDEN)),
        ("self_attn.k_proj.weight", "attn_k.weight", (keys, HIDDEN)),
        ("self_attn.v_proj.weight", "attn_v.weight", (keys, HIDDEN)),
        ("self_attn.o_proj.weight", "attn_output.weight", (HIDDEN, queries)),
        ("mlp.gate_proj.weight", "ffn_gate.weight", (INNER, HIDDEN)),
        ("mlp.up_proj.weight", "ffn_up.weight", (INNER, HIDDEN)),
        ("mlp.down_proj.weight", "ffn_down.weight", (HIDDEN, INNER)),
        ("input_layernorm.weight", "attn_norm.weight", (HIDDEN,)),
    ]
    if family == "qwen2":
        sizes = {"q": queries, "k": keys, "v": keys}
        rows += [(f"self_attn.{part}_proj.bias", f"attn_{part}.bias", (size,)) for part, size in sizes.items()]
    if family in ("qwen3", "gemma3"):
        rows += [(f"self_attn.{part}_norm.weight", f"attn_{part}_norm.weight", (HEAD_DIM,)) for part in "qk"]
    if family == "gemma3":
        rows.append(("post_attention_layernorm.weight", "post_attention_norm.weight", (HIDDEN,)))
        rows.append(("pre_feedforward_layernorm.weight", "ffn_norm.weight", (HIDDEN,)))
        rows.append(("post_feedforward_layernorm.weight", "post_ffw_norm.weight", (HIDDEN,)))
    else:
        rows.append(("post_attention_layernorm.weight", "ffn_norm.weight", (HIDDEN,)))
    layers = range(LAYERS)
    return found + [
        (f"model.layers.{i}.{ours}", f"blk.{i}.{gguf}", shape) for i in layers for ours, gguf, shape in rows
    ]


def _gpt2_tensors() -> list[tuple[str, str, Shape]]:
    found: list[tuple[str, str, Shape]] = [
        ("transformer.wte.weight", "token_embd.weight", (VOCAB_SIZE, HIDDEN)),
        ("transformer.wpe.weight", "position_embd.weight", (CONTEXT, HIDDEN)),
    ]
    rows: list[tuple[str, str, Shape]] = [
        ("attn.c_attn", "attn_qkv", (3 * HIDDEN, HIDDEN)),
        ("attn.c_proj", "attn_output", (HIDDEN, HIDDEN)),
        ("mlp.c_fc", "ffn_up", (INNER, HIDDEN)),
        ("mlp.c_proj", "ffn_down", (HIDDEN, INNER)),
        ("ln_1", "attn_norm", (HIDDEN,)),
        ("ln_2", "ffn_norm", (HIDDEN,)),
    ]
    all_rows = [("transformer.ln_f", "output_norm", (HIDDEN,))]
    all_rows += [
        (f"transformer.h.{i}.{ours}", f"blk.{i}.{gguf}", shape) for i in range(LAYERS) for ours, gguf, shape in rows
    ]
    for ours, gguf, shape in all_rows:
        found += [(f"{ours}.weight", f"{gguf}.weight", shape), (f"{ours}.bias", f"{gguf}.bias", shape[:1])]
    return found


def pieces(count: int) -> list[tuple[str, float, int]]:
    """Make a SentencePiece vocabulary of so many tokens: text, score and kind."""
    found = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<b>", 0.0, 4)]
    found += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    words = [SPACE, "h", "e", "l", "o", SPACE + "h", "he", "lo", "ll", "llo", "hello", SPACE + "hello"]
    found += [(word, -1.0 - index, 1) for index, word in enumerate(words)]
    return found + [(f"[PAD{index}]", -1000.0, 5) for index in range(count - len(found))]


# --- GGUF files ---


def gguf_keys(tokenizer: str, family: str = "llama") -> dict[str, Any]:
    """Return the metadata of a GGUF file of this family with a tokenizer of this model: gpt2, llama or t5."""
    name = "llama" if family == "mistral" else family
    norm = "layer_norm_epsilon" if family == "gpt2" else "layer_norm_rms_epsilon"
    keys: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.block_count": LAYERS,
        f"{name}.context_length": CONTEXT,
        f"{name}.embedding_length": HIDDEN,
        f"{name}.feed_forward_length": INNER,
        f"{name}.attention.head_count": HEADS,
        f"{name}.attention.{norm}": 1e-5,
        f"{name}.vocab_size": VOCAB_SIZE,
        "general.sampling.temp": 0.5,
        "tokenizer.ggml.model": tokenizer,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    if family != "gpt2":
        keys |= {f"{name}.attention.head_count_kv": KV_HEADS, f"{name}.attention.key_length": HEAD_DIM}
        keys |= {f"{name}.rope.freq_base": 10000.0, f"{name}.rope.dimension_count": HEAD_DIM}
        keys |= {f"{name}.rope.scaling.type": "yarn", f"{name}.rope.scaling.factor": 2.0}
        keys |= {f"{name}.rope.scaling.original_context_length": CONTEXT // 2}
    if family == "gemma3":
        keys |= {"gemma3.attention.sliding_window": 16, "gemma3.attention.sliding_window_pattern": 2}
        keys |= {"gemma3.rope.freq_base_swa": 1000.0, "gemma3.rope.scaling.type": "linear"}
    return keys | {f"tokenizer.ggml.{key}": value for key, value in _vocabulary(tokenizer).items()}


def _vocabulary(tokenizer: str) -> dict[str, Any]:
    if tokenizer == "gpt2":
        tokens = [*SPECIAL, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
        kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
        return {"tokens": tokens, "token_type": kinds, "merges": MERGES, "pre": "smollm"}
    tokens, scores, kinds = map(list, zip(*pieces(VOCAB_SIZE), strict=True))
    found = {"tokens": tokens, "scores": scores, "token_type": kinds, "add_space_prefix": tokenizer == "llama"}
    return found | (
        {"remove_extra_whitespaces": True, "precompiled_charsmap": list(CHARSMAP)} if tokenizer == "t5" else {}
    )


def tiny_gguf(keys: dict[str, Any], family: str = "llama", quant: str = "F32") -> bytes:
    """Make a GGUF file with these keys and weights, whose matrices have this type."""
    builder = GGUFBuilder()
    for name, value in keys.items():
        builder.raw_key(name, *value) if isinstance(value, tuple) else builder.key(name, value)
    for _, name, shape in tensors(family):
        kind, elements, size = QUANTS[quant if len(shape) == 2 else "F32"]
        count = int(np.prod(shape))
        raw = np.full(count, 0.1, "<f4").tobytes() if kind == 0 else bytes(count // elements * size)
        builder.tensor(name, list(reversed(shape)), raw, kind)
    return builder.build()


# --- folders ---


def safetensors(family: str = "llama") -> bytes:
    """Make the weights of a folder."""
    header, data = {}, b""
    for name, _, shape in tensors(family):
        stored = shape[::-1] if family == "gpt2" and ".h." in name else shape
        raw = np.full(stored, 0.1, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": stored, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def config(family: str) -> dict[str, Any]:
    """Return the config.json of a family."""
    if family == "gpt2":
        sizes = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT, "n_inner": INNER}
        return {"model_type": "gpt2", "vocab_size": VOCAB_SIZE, "activation_function": "gelu_new", **sizes}
    rope: dict[str, Any] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    return {
        "model_type": "gemma3_text" if family == "gemma3" else family,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": rope, "sliding_attention": None} if family == "gemma3" else rope,
        "eos_token_id": [2, 0],
    }


def folder_files(family: str = "llama") -> dict[str, bytes]:
    """Make the files of a model folder."""
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
        "config.json": config(family),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": generation,
    }
    encoded = {name: json.dumps(content).encode() for name, content in files.items()}
    return encoded | {"model.safetensors": safetensors(family)}


def piece_files() -> dict[str, bytes]:
    """Make the files of a model folder whose tokenizer is SentencePiece's."""
    files = folder_files()
    del files["tokenizer.json"]
    added = {str(VOCAB_SIZE): {"content": "<|end|>", "special": True}}
    settings = {"add_bos_token": True, "legacy": False, "added_tokens_decoder": added, "chat_template": CHATML}
    files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files | {"tokenizer.model": piece_file(pieces(VOCAB_SIZE), charsmap=CHARSMAP)}


def sound_models() -> dict[str, dict[str, bytes]]:
    """Return the files of models that cover all that is made here, by a name."""
    models = {f"{name} tokens": {"model.gguf": tiny_gguf(gguf_keys(name))} for name in ("gpt2", "llama", "t5")}
    for family in FAMILIES:
        models[f"{family} file"] = {"model.gguf": tiny_gguf(gguf_keys("gpt2", family), family, "Q8_0")}
        models[f"{family} folder"] = folder_files(family)
    return models | {"pieces": piece_files()}

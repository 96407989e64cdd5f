"""The decoder that most families share, in words: sizes, constants, parameters. No torch; decoder_model.py computes.

RMSNorm, rotary positions, grouped-query attention, a gated network. Families differ in what DecoderConfig says: biases,
norms of queries and keys, windows, scales. How they read it from files: reading.py and one file per family.
Sources: Touvron et al. 2023 (LLaMA); Ainslie et al. 2023 (grouped-query attention); Shazeer 2020 (gated networks).
"""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from headrace.runners.models.checks import ContextLength, LayerCount, Positive, Size, Window
from headrace.runners.models.contract import Parameter
from headrace.runners.models.rope import Rope

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.runners.models.decoder_model import Decoder
    from headrace.runners.models.layers import Ops

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class DecoderLayerConfig(Struct, frozen=True):
    """How one layer attends."""

    window: Window | None = None
    """Tokens that a query sees, itself included; None: all before it."""
    rope: int = 0
    """Index into DecoderConfig.ropes."""


class DecoderConfig(Struct, frozen=True, kw_only=True):
    """Sizes and constants of one model. Implements contract.ModelConfig."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_layers: LayerCount
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    context_length: ContextLength
    rms_eps: Positive
    ropes: tuple[Rope, ...]
    layers: tuple[DecoderLayerConfig, ...]
    attention_scale: Positive
    """What dot products of queries and keys are multiplied by."""
    tied_head: bool = False
    """The head is the embedding."""
    activation: Literal["silu", "gelu"] = "silu"
    """Of the feed-forward network's gate; gelu is the tanh approximation."""
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    """What folders leave out of all norm weights, and GGUF files have."""
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    """Queries and keys are normalised head by head."""
    has_post_norms: bool = False
    """Outputs of attention and feed-forward network are normalised before they are added."""
    has_interleaved_heads: bool = False
    """GGUF files of this family store rows of Q and K in pairs."""


def parameters(config: DecoderConfig) -> list[Parameter]:
    """List the parameters of a model of this config."""
    hidden, vocab = config.hidden_size, config.vocab_size
    found = [
        Parameter(EMBEDDING, "token_embd.weight", (vocab, hidden)),
        Parameter(NORM, "output_norm.weight", (hidden,), folder_offset=config.norm_offset),
        Parameter(HEAD, "output.weight", (vocab, hidden), tied_to=EMBEDDING if config.tied_head else None),
    ]
    for index in range(config.num_layers):
        found += [_of_layer(index, *row) for row in _matrices(config)]
        found += [_of_layer(index, *row) for row in _biases(config)]
        found += [_of_layer(index, *row, None, config.norm_offset) for row in _norms(config)]
    return found


def _of_layer(
    index: int, name: str, gguf_name: str, shape: tuple[int, ...], heads: int | None = None, offset: float = 0.0
) -> Parameter:
    return Parameter(
        f"model.layers.{index}.{name}", f"blk.{index}.{gguf_name}", shape, interleaved_heads=heads, folder_offset=offset
    )


def _matrices(config: DecoderConfig) -> list[tuple[str, str, tuple[int, ...], int | None]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    pairs = config.has_interleaved_heads
    return [
        ("self_attn.q_proj.weight", "attn_q.weight", (queries, hidden), config.num_heads if pairs else None),
        ("self_attn.k_proj.weight", "attn_k.weight", (keys, hidden), config.num_kv_heads if pairs else None),
        ("self_attn.v_proj.weight", "attn_v.weight", (keys, hidden), None),
        ("self_attn.o_proj.weight", "attn_output.weight", (hidden, queries), None),
        ("mlp.gate_proj.weight", "ffn_gate.weight", (inner, hidden), None),
        ("mlp.up_proj.weight", "ffn_up.weight", (inner, hidden), None),
        ("mlp.down_proj.weight", "ffn_down.weight", (hidden, inner), None),
    ]


def _biases(config: DecoderConfig) -> list[tuple[str, str, tuple[int, ...]]]:
    if not config.has_qkv_bias:
        return []
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [
        ("self_attn.q_proj.bias", "attn_q.bias", (queries,)),
        ("self_attn.k_proj.bias", "attn_k.bias", (keys,)),
        ("self_attn.v_proj.bias", "attn_v.bias", (keys,)),
    ]


def _norms(config: DecoderConfig) -> list[tuple[str, str, tuple[int, ...]]]:
    hidden = (config.hidden_size,)
    found = [("input_layernorm.weight", "attn_norm.weight", hidden)]
    if config.has_qk_norm:
        found += [
            (f"self_attn.{part}_norm.weight", f"attn_{part}_norm.weight", (config.head_dim,)) for part in ("q", "k")
        ]
    if not config.has_post_norms:
        return [*found, ("post_attention_layernorm.weight", "ffn_norm.weight", hidden)]
    return [
        *found,
        ("post_attention_layernorm.weight", "post_attention_norm.weight", hidden),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight", hidden),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", hidden),
    ]


def build(config: DecoderConfig, weights: "dict[str, Tensor]", ops: "Ops", max_positions: int) -> "Decoder":
    """Build the model in torch."""
    from headrace.runners.models.decoder_model import Decoder

    return Decoder(config, weights, ops, max_positions)

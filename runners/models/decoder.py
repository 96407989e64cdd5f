"""The decoder that most families share: RMSNorm, rotary positions, grouped-query attention, a gated network.

Families differ in what DecoderConfig says: biases, norms of queries and keys, windows, scales. How they read it from
files: reading.py and one file per family.
Sources: Touvron et al. 2023 (LLaMA); Ainslie et al. 2023 (grouped-query attention); Shazeer 2020 (gated networks).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct
from torch import Tensor
from torch.nn import functional

from headrace.runners.models.checks import ContextLength, LayerCount, Positive, Size
from headrace.runners.models.contract import Parameter
from headrace.runners.models.layers import Ops, Rotary, rms_norm
from headrace.runners.native.rope import Rope

EMBEDDING = "model.embed_tokens.weight"
_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"


class DecoderLayerConfig(Struct, frozen=True):
    """How one layer attends."""

    window: Annotated[int, msgspec.Meta(ge=1)] | None = None
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
        Parameter(_NORM, "output_norm.weight", (hidden,), folder_offset=config.norm_offset),
        Parameter(_HEAD, "output.weight", (vocab, hidden), tied_to=EMBEDDING if config.tied_head else None),
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


class DecoderLayer:
    """One layer. Implements contract.Layer."""

    def __init__(self, config: DecoderConfig, index: int, weights: dict[str, Tensor], rotary: Rotary, ops: Ops) -> None:
        self.window = config.layers[index].window
        self._heads, self._kv_heads, self._head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._eps, self._rotary, self._ops = config.rms_eps, rotary, ops
        self._activate = ops.silu if config.activation == "silu" else ops.gelu
        self._post_norms = config.has_post_norms

        def own(name: str) -> Tensor | None:
            return weights.get(f"model.layers.{index}.{name}")

        def need(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}.weight"]

        self._q, self._k, self._v = (need(f"self_attn.{part}_proj") for part in ("q", "k", "v"))
        self._q_bias, self._k_bias, self._v_bias = (own(f"self_attn.{part}_proj.bias") for part in ("q", "k", "v"))
        self._q_norm, self._k_norm = (own(f"self_attn.{part}_norm.weight") for part in ("q", "k"))
        self._o, self._input_norm = need("self_attn.o_proj"), need("input_layernorm")
        self._after_norm = need("post_attention_layernorm")
        self._inner_norm = need("pre_feedforward_layernorm") if self._post_norms else self._after_norm
        self._output_norm = own("post_feedforward_layernorm.weight")
        self._gate, self._up, self._down = (need(f"mlp.{part}_proj") for part in ("gate", "up", "down"))

    def before_attention(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise, project to queries, keys and values, and turn queries and keys by their positions."""
        x = rms_norm(x, self._input_norm, self._eps)
        queries = self._project(x, self._q, self._q_bias, self._heads)
        keys = self._project(x, self._k, self._k_bias, self._kv_heads)
        values = self._project(x, self._v, self._v_bias, self._kv_heads)
        if self._q_norm is not None and self._k_norm is not None:
            queries, keys = rms_norm(queries, self._q_norm, self._eps), rms_norm(keys, self._k_norm, self._eps)
        return self._rotary(queries, positions), self._rotary(keys, positions), values

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Project what attention gave and run the feed-forward network, both added to the residual stream."""
        linear = self._ops.linear
        projected = linear(attended.flatten(1), self._o)
        x = x + (rms_norm(projected, self._after_norm, self._eps) if self._post_norms else projected)
        inner = rms_norm(x, self._inner_norm, self._eps)
        gate = self._activate(linear(inner, self._gate))
        output = linear(gate * linear(inner, self._up), self._down)
        return x + (output if self._output_norm is None else rms_norm(output, self._output_norm, self._eps))

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        projected = self._ops.linear(x, weight)
        if bias is not None:
            projected = projected + bias
        return projected.view(-1, heads, self._head_dim)


class Decoder:
    """A whole model. Implements contract.CausalModel."""

    def __init__(self, config: DecoderConfig, weights: dict[str, Tensor], ops: Ops, max_positions: int) -> None:
        self._eps, self._linear = config.rms_eps, ops.linear
        self._embedding, self._norm, self._head = weights[EMBEDDING], weights[_NORM], weights[_HEAD]
        self._embedding_scale = self._embedding.new_tensor(config.embedding_scale)
        dtype = self._embedding.dtype
        rotaries = [Rotary(config.head_dim, rope, max_positions, dtype) for rope in config.ropes]
        self.layers = [
            DecoderLayer(config, index, weights, rotaries[layer.rope], ops) for index, layer in enumerate(config.layers)
        ]
        self.attention_scale: float = config.attention_scale

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Look up (T, hidden) for (T,) token ids; positions change nothing here."""
        return functional.embedding(token_ids, self._embedding) * self._embedding_scale

    def head(self, x: Tensor) -> Tensor:
        """Return (T, vocab_size) logits."""
        return self._linear(rms_norm(x, self._norm, self._eps), self._head)

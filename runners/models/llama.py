"""The Llama architecture: RMSNorm, rotary positions, grouped-query attention, SwiGLU. Llama, SmolLM and alike.

Sources: Touvron et al. 2023 (LLaMA); Ainslie et al. 2023 (grouped-query attention); Shazeer 2020 (SwiGLU).
"""

from typing import Any

from msgspec import Struct
from torch import Tensor
from torch.nn import functional

from headrace.core.errors import ModelFileDamaged
from headrace.core.model_files.gguf import GGUFFile
from headrace.runners.models.checks import ContextLength, LayerCount, Positive, Size, checked, require
from headrace.runners.models.contract import Family, Parameter
from headrace.runners.models.layers import Ops, Rotary, rms_norm

_EMBEDDING = "model.embed_tokens.weight"
_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"


class LlamaConfig(Struct, frozen=True):
    """Sizes and constants of one model."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_layers: LayerCount
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    context_length: ContextLength
    rms_eps: Positive
    rope_base: Positive
    tied_head: bool
    """The head is the embedding."""


class FolderConfig(Struct, frozen=True):
    """What config.json says of a Llama model; fields that aren't here change nothing."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: Size
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """Newer files say here what rope_theta and rope_scaling said."""
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    quantization_config: dict[str, Any] | None = None


def read_folder(where: str, values: dict[str, Any]) -> LlamaConfig:
    """Read the config from a folder's config.json."""
    found = checked(where, FolderConfig, values)
    rope = found.rope_parameters or found.rope_scaling or {}
    require(where, "the rope type", rope.get("rope_type", rope.get("type", "default")), "default")
    require(where, "hidden_act", found.hidden_act, "silu")
    require(where, "attention_bias", found.attention_bias, False)
    require(where, "mlp_bias", found.mlp_bias, False)
    require(where, "quantization_config", found.quantization_config, None)
    return _checked(
        where,
        vocab_size=found.vocab_size,
        hidden_size=found.hidden_size,
        intermediate_size=found.intermediate_size,
        num_layers=found.num_hidden_layers,
        num_heads=found.num_attention_heads,
        num_kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=found.head_dim or found.hidden_size // found.num_attention_heads,
        context_length=found.max_position_embeddings,
        rms_eps=found.rms_norm_eps,
        rope_base=rope.get("rope_theta", found.rope_theta),
        tied_head=found.tie_word_embeddings,
    )


def read_gguf(file: GGUFFile) -> LlamaConfig:
    """Read the config from a GGUF file's metadata; the vocabulary's size is the embedding's."""
    where = str(file.path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileDamaged(f"{where}: tensor token_embd.weight is missing")
    num_heads = file.value("llama.attention.head_count", int)
    hidden_size = file.value("llama.embedding_length", int)
    head_dim = file.value("llama.attention.key_length", int, hidden_size // max(num_heads, 1))
    rotary_dim = file.value("llama.rope.dimension_count", int, head_dim)
    require(where, "llama.rope.dimension_count", rotary_dim, head_dim)
    require(where, "llama.rope.scaling.type", file.value("llama.rope.scaling.type", str, "none"), "none")
    require(where, "llama.expert_count", file.value("llama.expert_count", int, 0), 0)
    return _checked(
        where,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=file.value("llama.feed_forward_length", int),
        num_layers=file.value("llama.block_count", int),
        num_heads=num_heads,
        num_kv_heads=file.value("llama.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        context_length=file.value("llama.context_length", int),
        rms_eps=file.value("llama.attention.layer_norm_rms_epsilon", float),
        rope_base=file.value("llama.rope.freq_base", float, 10000.0),
        tied_head="output.weight" not in file.tensors,
    )


def _checked(where: str, **values: Any) -> LlamaConfig:
    config = checked(where, LlamaConfig, values)
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ModelFileDamaged(
            f"{where}: {config.num_heads} heads of {config.head_dim} numbers with {config.num_kv_heads} KV heads:"
            " heads must be a multiple of KV heads, and their size even"
        )
    return config


def parameters(config: LlamaConfig) -> list[Parameter]:
    """List the parameters of a model of this config."""
    hidden, vocab = config.hidden_size, config.vocab_size
    head = Parameter(_HEAD, "output.weight", (vocab, hidden), tied_to=_EMBEDDING if config.tied_head else None)
    found = [
        Parameter(_EMBEDDING, "token_embd.weight", (vocab, hidden)),
        Parameter(_NORM, "output_norm.weight", (hidden,)),
        head,
    ]
    for index in range(config.num_layers):
        found += _layer_parameters(config, index)
    return found


def _layer_parameters(config: LlamaConfig, index: int) -> list[Parameter]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows: list[tuple[str, str, tuple[int, ...], int | None]] = [
        ("input_layernorm", "attn_norm", (hidden,), None),
        ("self_attn.q_proj", "attn_q", (queries, hidden), config.num_heads),
        ("self_attn.k_proj", "attn_k", (keys, hidden), config.num_kv_heads),
        ("self_attn.v_proj", "attn_v", (keys, hidden), None),
        ("self_attn.o_proj", "attn_output", (hidden, queries), None),
        ("post_attention_layernorm", "ffn_norm", (hidden,), None),
        ("mlp.gate_proj", "ffn_gate", (inner, hidden), None),
        ("mlp.up_proj", "ffn_up", (inner, hidden), None),
        ("mlp.down_proj", "ffn_down", (hidden, inner), None),
    ]
    return [
        Parameter(f"model.layers.{index}.{name}.weight", f"blk.{index}.{gguf_name}.weight", shape, heads)
        for name, gguf_name, shape, heads in rows
    ]


class LlamaLayer:
    """One layer of Llama. Implements contract.Layer."""

    def __init__(self, config: LlamaConfig, index: int, weights: dict[str, Tensor], rotary: Rotary, ops: Ops) -> None:
        self._heads, self._kv_heads, self._head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._eps, self._rotary, self._ops = config.rms_eps, rotary, ops

        def own(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}.weight"]

        self._input_norm, self._output_norm = own("input_layernorm"), own("post_attention_layernorm")
        self._q, self._k, self._v = own("self_attn.q_proj"), own("self_attn.k_proj"), own("self_attn.v_proj")
        self._o = own("self_attn.o_proj")
        self._gate, self._up, self._down = own("mlp.gate_proj"), own("mlp.up_proj"), own("mlp.down_proj")

    def before_attention(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise, project to queries, keys and values, and turn queries and keys by their positions."""
        linear = self._ops.linear
        x = rms_norm(x, self._input_norm, self._eps)
        queries = linear(x, self._q).view(-1, self._heads, self._head_dim)
        keys = linear(x, self._k).view(-1, self._kv_heads, self._head_dim)
        values = linear(x, self._v).view(-1, self._kv_heads, self._head_dim)
        return self._rotary(queries, positions), self._rotary(keys, positions), values

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Project what attention gave and run the feed-forward network, both added to the residual stream."""
        linear = self._ops.linear
        x = x + linear(attended.flatten(1), self._o)
        inner = rms_norm(x, self._output_norm, self._eps)
        gate = self._ops.silu(linear(inner, self._gate))
        return x + linear(gate * linear(inner, self._up), self._down)


class Llama:
    """A Llama model. Implements contract.CausalModel."""

    def __init__(self, config: LlamaConfig, weights: dict[str, Tensor], ops: Ops, max_positions: int) -> None:
        self._eps, self._linear = config.rms_eps, ops.linear
        self._embedding, self._norm, self._head = weights[_EMBEDDING], weights[_NORM], weights[_HEAD]
        rotary = Rotary(config.head_dim, config.rope_base, max_positions, self._embedding.dtype)
        self.layers = [LlamaLayer(config, index, weights, rotary, ops) for index in range(config.num_layers)]
        self.attention_scale: float = config.head_dim**-0.5

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look up (T, hidden) for (T,) token ids."""
        return functional.embedding(token_ids, self._embedding)

    def head(self, x: Tensor) -> Tensor:
        """Return (T, vocab_size) logits."""
        return self._linear(rms_norm(x, self._norm, self._eps), self._head)


FAMILY = Family(
    name="llama",
    read_gguf=read_gguf,
    read_folder=read_folder,
    parameters=parameters,
    build=Llama,
    ignored=("*.rotary_emb.inv_freq",),
)

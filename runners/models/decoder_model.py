"""The decoder of decoder.py in torch."""

from torch import Tensor
from torch.nn import functional

from headrace.runners.models.decoder import EMBEDDING, HEAD, NORM, DecoderConfig
from headrace.runners.models.layers import Ops, Rotary, rms_norm


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
        self._embedding, self._norm, self._head = weights[EMBEDDING], weights[NORM], weights[HEAD]
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

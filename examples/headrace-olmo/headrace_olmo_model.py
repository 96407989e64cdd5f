"""OLMo in torch, on flat token lists; attention and its K/V storage are the runner's."""

from headrace_olmo import NORM_EPS, OlmoConfig
from torch import Tensor
from torch.nn import functional

from headrace.runners.models.decoder import EMBEDDING, HEAD
from headrace.runners.models.layers import Ops, Rotary


class OlmoLayer:
    """One layer. Implements contract.Layer."""

    window = None

    def __init__(self, config: OlmoConfig, index: int, weights: dict[str, Tensor], rotary: Rotary, ops: Ops) -> None:
        self._config, self._rotary, self._ops = config, rotary, ops

        def own(name: str) -> Tensor:
            return weights[f"model.layers.{index}.{name}_proj.weight"]

        self._q, self._k, self._v, self._o = (own(f"self_attn.{part}") for part in ("q", "k", "v", "o"))
        self._gate, self._up, self._down = (own(f"mlp.{part}") for part in ("gate", "up", "down"))

    def before_attention(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise, project to queries, keys and values, and turn queries and keys by their positions."""
        x = _norm(x)
        queries = self._project(x, self._q, self._config.num_heads)
        keys = self._project(x, self._k, self._config.num_kv_heads)
        values = self._project(x, self._v, self._config.num_kv_heads)
        return self._rotary(queries, positions), self._rotary(keys, positions), values

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Project what attention gave and run the feed-forward network, both added to the residual stream."""
        linear = self._ops.linear
        x = x + linear(attended.flatten(1), self._o)
        inner = _norm(x)
        return x + linear(self._ops.silu(linear(inner, self._gate)) * linear(inner, self._up), self._down)

    def _project(self, x: Tensor, weight: Tensor, heads: int) -> Tensor:
        projected = self._ops.linear(x, weight)
        limit = self._config.clip_qkv
        if limit is not None:
            projected = projected.clamp(-limit, limit)
        return projected.view(-1, heads, self._config.head_dim)


class Olmo:
    """A whole model. Implements contract.CausalModel."""

    def __init__(self, config: OlmoConfig, weights: dict[str, Tensor], ops: Ops, max_positions: int) -> None:
        self._embedding, self._head, self._linear = weights[EMBEDDING], weights[HEAD], ops.linear
        rotary = Rotary(config.head_dim, config.ropes[0], max_positions, self._embedding.dtype)
        self.layers = [OlmoLayer(config, index, weights, rotary, ops) for index in range(config.num_layers)]
        self.attention_scale: float = config.attention_scale

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Look up (T, hidden) for (T,) token ids; positions change nothing here."""
        return functional.embedding(token_ids, self._embedding)

    def head(self, x: Tensor) -> Tensor:
        """Return (T, vocab_size) logits."""
        return self._linear(_norm(x), self._head)


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS)

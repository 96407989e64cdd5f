"""GPT-2 in torch."""

from torch import Tensor
from torch.nn import functional

from headrace.runners.models.gpt2 import EMBEDDING, HEAD, POSITIONS, PREFIX, GPT2Config
from headrace.runners.models.layers import Ops


class GPT2Layer:
    """One layer. Implements contract.Layer."""

    window = None

    def __init__(self, config: GPT2Config, index: int, weights: dict[str, Tensor], ops: Ops) -> None:
        self._heads, self._head_dim, self._eps, self._ops = config.num_heads, config.head_dim, config.eps, ops

        def own(name: str) -> tuple[Tensor, Tensor]:
            full = f"{PREFIX}h.{index}.{name}"
            return weights[f"{full}.weight"], weights[f"{full}.bias"]

        self._input_norm, self._inner_norm = own("ln_1"), own("ln_2")
        self._qkv, self._projection = own("attn.c_attn"), own("attn.c_proj")
        self._up, self._down = own("mlp.c_fc"), own("mlp.c_proj")

    def before_attention(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalise and project to queries, keys and values; positions came in with the embedding."""
        found = self._linear(_layer_norm(x, self._input_norm, self._eps), self._qkv)
        queries, keys, values = found.view(-1, 3, self._heads, self._head_dim).unbind(1)
        return queries.contiguous(), keys.contiguous(), values.contiguous()

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Project what attention gave and run the feed-forward network, both added to the residual stream."""
        x = x + self._linear(attended.flatten(1), self._projection)
        inner = self._linear(_layer_norm(x, self._inner_norm, self._eps), self._up)
        return x + self._linear(self._ops.gelu(inner), self._down)

    def _linear(self, x: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
        weight, bias = weights
        return self._ops.linear(x, weight) + bias


def _layer_norm(x: Tensor, weights: tuple[Tensor, Tensor], eps: float) -> Tensor:
    weight, bias = weights
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


class GPT2:
    """A GPT-2 model. Implements contract.CausalModel."""

    def __init__(self, config: GPT2Config, weights: dict[str, Tensor], ops: Ops, max_positions: int) -> None:
        self._eps, self._linear = config.eps, ops.linear
        self._embedding, self._positions, self._head = weights[EMBEDDING], weights[POSITIONS], weights[HEAD]
        self._norm = weights[f"{PREFIX}ln_f.weight"], weights[f"{PREFIX}ln_f.bias"]
        self.layers = [GPT2Layer(config, index, weights, ops) for index in range(config.num_layers)]
        self.attention_scale: float = config.head_dim**-0.5

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Add what is learned of tokens and of positions: (T, hidden)."""
        return functional.embedding(token_ids, self._embedding) + functional.embedding(positions, self._positions)

    def head(self, x: Tensor) -> Tensor:
        """Return (T, vocab_size) logits."""
        return self._linear(_layer_norm(x, self._norm, self._eps), self._head)

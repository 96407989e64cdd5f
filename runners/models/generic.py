"""Models whose forward pass is transformers' own and calls us for attention, over our paged K/V.

How a model does that is found by trying it on one token. Needs torch; transformers is where models come from
(loading/generic.py).
"""

import inspect
from typing import Any, NamedTuple, Protocol

import torch
from msgspec import Struct
from torch import Tensor

from headrace.core.errors import UnsupportedModel

_KEYWORD = "headrace_attention"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""What some models want of attention beside a scale and a window."""


class Attention(Protocol):
    """What a forward pass calls for each layer."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return (T, num_heads, head_dim) for queries in this shape, keys and values (T, num_kv_heads, head_dim)."""


class LayerFacts(NamedTuple):
    """How one layer calls for attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None


class GenericConfig(Struct, frozen=True):
    """Facts of a model. Implements contract.ModelConfig."""

    vocab_size: int
    context_length: int
    layers: tuple[LayerFacts, ...]

    @property
    def num_layers(self) -> int:
        """Layers, each with K/V of its own."""
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.layers[0].num_heads

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and V."""
        return self.layers[0].num_kv_heads

    @property
    def head_dim(self) -> int:
        """Numbers of one head."""
        return self.layers[0].head_dim


class GenericModel:
    """A model of transformers, cut in two: what comes before its head, and the head. Raises UnsupportedModel."""

    def __init__(self, where: str, model: Any) -> None:
        self._model, self._given = model, _Given()
        self._base = getattr(model, model.base_model_prefix)
        if "position_ids" not in inspect.signature(self._base.forward).parameters:
            raise refused(where, model.config, "it takes no positions")
        setattr(model, model.base_model_prefix, self._given)
        text = model.config.get_text_config()
        self.config = GenericConfig(text.vocab_size, text.max_position_embeddings, self._probe(where))

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Return (T, hidden) for (T,) token ids and positions."""
        found = self._base(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **{_KEYWORD: attention}
        )
        hidden: Tensor = found.last_hidden_state[0]
        return hidden

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden), with all that the model does to them."""
        self._given.hidden = x[None]
        logits: Tensor = self._model(input_ids=torch.zeros(1, len(x), dtype=torch.int64), use_cache=False).logits[0]
        return logits

    def _probe(self, where: str) -> tuple[LayerFacts, ...]:
        probe = _Probe()
        try:
            self.hidden(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), probe)
        except _OtherAttention as error:
            raise refused(where, self._model.config, str(error)) from error
        layers = [probe.layers[index] for index in sorted(probe.layers)]
        if not layers or sorted(probe.layers) != list(range(self._model.config.get_text_config().num_hidden_layers)):
            raise refused(where, self._model.config, f"only layers {', '.join(map(str, probe.layers))} have any")
        if len({layer[:3] for layer in layers}) > 1:
            raise refused(where, self._model.config, "layers have different heads")
        return tuple(layers)


class _OtherAttention(Exception):
    """A layer asks for something else than attention to keys and values per head."""


class _Given(torch.nn.Module):
    """Stands where the model's body was, so that the model's own code computes logits of hidden states we kept."""

    hidden: Tensor

    def forward(self, *args: Any, **options: Any) -> "_Output":
        return _Output(self.hidden)


class _Output:
    """What a body returns, as far as heads look at it: by attribute or as the first of a tuple; the rest is None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]


class _Probe:
    """Attention that only looks at how it is called."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerFacts] = {}

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return queries

    def note(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, facts: LayerFacts) -> None:
        """Remember a layer. Raises _OtherAttention."""
        if layer in self.layers or keys.shape != values.shape or keys.shape[-1] != queries.shape[-1]:
            raise _OtherAttention(f"layer {layer} has keys {tuple(keys.shape)} and values {tuple(values.shape)}")
        self.layers[layer] = facts


def attend(
    module: torch.nn.Module,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: all (1, heads, T, head_dim); returns (1, T, heads, head_dim)."""
    attention, layer = options.get(_KEYWORD), getattr(module, "layer_idx", None)
    if attention is None or not isinstance(layer, int):
        raise _OtherAttention("its layers can't be told apart")
    if isinstance(attention, _Probe):
        extra = [name for name in _UNSUPPORTED if options.get(name) is not None]
        if extra:
            raise _OtherAttention(f"its attention has {', '.join(extra)}")
        scale = queries.shape[-1] ** -0.5 if scaling is None else float(scaling)
        facts = LayerFacts(queries.shape[1], keys.shape[1], queries.shape[3], scale, sliding_window)
        attention.note(layer, queries, keys, values, facts)
    flat = (each[0].transpose(0, 1).contiguous() for each in (queries, keys, values))
    return attention(layer, *flat)[None], None


def refused(where: str, config: Any, reason: str) -> UnsupportedModel:
    """Make the error for an architecture that can't be run this way."""
    return UnsupportedModel(
        f"{where}: architecture {config.model_type!r} isn't built in, and its cache isn't plain keys and values per"
        f" head: {reason}"
    )

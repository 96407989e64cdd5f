"""What a model family is: how it reads its config, which parameters it has, and the stages of its forward pass.

Torch is needed to build a model, not to import this file. K/V storage and attention are the runner's.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from headrace.core.model_files.gguf import GGUFFile

if TYPE_CHECKING:
    from torch import Tensor

    from headrace.runners.models.layers import Ops


class Parameter(Struct, frozen=True):
    """A tensor that a model is built from."""

    name: str
    """In a Hugging Face folder; models use this name too."""
    gguf_name: str
    shape: tuple[int, ...]
    interleaved_heads: int | None = None
    """GGUF files of some architectures store so many heads' rows in pairs (0, D/2, 1, D/2 + 1, ...), which the loader
    undoes: our rotary embedding turns the first half of a head against the second."""
    tied_to: str | None = None
    """This parameter is that other one; files don't have it."""
    other_name: str | None = None
    """What some folders call it instead."""
    folder_offset: float = 0.0
    """What is added to the numbers of a folder; GGUF files have it added."""
    is_transposed_in_folders: bool = False
    """Folders store a matrix as (inputs, outputs)."""


class ModelConfig(Protocol):
    """What every family's own config tells a runner."""

    @property
    def num_layers(self) -> int:
        """Layers, each with K/V of its own."""

    @property
    def num_heads(self) -> int:
        """Query heads."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and V, each shared by num_heads / num_kv_heads query heads."""

    @property
    def head_dim(self) -> int:
        """Numbers of one head."""

    @property
    def vocab_size(self) -> int:
        """Logits per token."""

    @property
    def context_length(self) -> int:
        """Longest sequence the model was made for, in tokens."""


class Layer(Protocol):
    """One layer, cut in two where the runner writes K/V and attends."""

    @property
    def window(self) -> int | None:
        """Tokens that a query sees, itself included; None: all before it."""

    def before_attention(self, x: "Tensor", positions: "Tensor") -> "tuple[Tensor, Tensor, Tensor]":
        """Return queries (T, num_heads, head_dim), keys and values (T, num_kv_heads, head_dim) of x (T, hidden).

        positions: (T,) int64, position of each token in its own sequence.
        """

    def after_attention(self, x: "Tensor", attended: "Tensor") -> "Tensor":
        """Return the layer's output (T, hidden); attended: (T, num_heads, head_dim)."""


class CausalModel(Protocol):
    """A model on flat token lists, row by row independent except for attention. Stateless: weights only."""

    @property
    def layers(self) -> Sequence[Layer]:
        """From the embedding to the head."""

    @property
    def attention_scale(self) -> float:
        """What dot products of queries and keys are multiplied by."""

    def embed(self, token_ids: "Tensor", positions: "Tensor") -> "Tensor":
        """Return (T, hidden) for (T,) token ids and (T,) int64 positions, each in its own sequence."""

    def head(self, x: "Tensor") -> "Tensor":
        """Return (T, vocab_size) logits for the last layer's output."""


class Family(Struct, frozen=True):
    """One architecture, provided by a plugin under the name that files call it by."""

    name: str
    """For messages."""
    read_gguf: Callable[[GGUFFile], Any]
    """Returns the family's ModelConfig. Raises ModelFileDamaged, UnsupportedModel."""
    read_folder: Callable[[str, dict[str, Any]], Any]
    """The same from config.json; the first argument names it in errors."""
    parameters: Callable[[Any], list[Parameter]]
    """All parameters of a model of this config."""
    build: "Callable[[Any, dict[str, Tensor], Ops, int], CausalModel]"
    """build(config, parameters by name, ops, longest sequence) -> model."""
    ignored: tuple[str, ...] = ()
    """Patterns (fnmatch) of tensors that files may have and the model doesn't need."""

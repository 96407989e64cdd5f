"""What the native runner must know of a model: sizes, constants, and what each layer has. No weights, no files."""

from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.models.checks import ContextLength, LayerCount, Positive, Size
from headrace.runners.native.rope import Rope

HEAD_DIM_STEP = 8
"""Numbers of one vector: heads are whole vectors."""


class LayerSpec(Struct, frozen=True):
    """How one layer attends."""

    window: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Tokens that a query sees, itself included; None: all before it."""
    rope: int = 0
    """Index into ModelSpec.ropes."""


class ModelSpec(Struct, frozen=True, kw_only=True):
    """A decoder of the Llama kind. Raises by check()."""

    num_layers: LayerCount
    hidden: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    inner: Size
    """Width of the feed-forward network."""
    vocab: Size
    context_length: ContextLength
    norm_eps: Positive
    query_scale: Positive
    """What dot products of queries and keys are multiplied by."""
    ropes: tuple[Rope, ...]
    layers: tuple[LayerSpec, ...]
    gate: Literal["silu", "gelu"] = "silu"
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    """Added to all norm weights of the file."""
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    """Outputs of attention and feed-forward network are normalised before they are added."""
    tied_head: bool = False
    """The head is the embedding."""
    interleaved_heads: bool = False
    """Rows of q and k alternate between the halves of a head, as GGUF files of Llama have them."""

    def check(self, where: str) -> None:
        """Check what types can't say. Raises ModelFileDamaged, UnsupportedModel."""
        if self.num_heads % self.num_kv_heads:
            raise ModelFileDamaged(f"{where}: {self.num_heads} heads aren't a multiple of {self.num_kv_heads} KV heads")
        if self.head_dim % HEAD_DIM_STEP:
            raise UnsupportedModel(
                f"{where}: heads of {self.head_dim} numbers, runner native needs a multiple of {HEAD_DIM_STEP};"
                " choose runner torch"
            )

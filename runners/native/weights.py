"""From a model's files to what the native library computes with: panels, norms, biases. Owner: NativeModel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.core.columns import Floats
from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.native.library import FORMATS, Library, address
from headrace.runners.native.spec import ModelSpec
from headrace.runners.native.tensors import RawTensor, TensorFile

_PLAIN = ("F32", "F16", "BF16")
_MOST_LISTED = 8


class Name(Struct, frozen=True):
    """A part of a layer, and what files call it."""

    part: str
    gguf: str
    folder: str


_MATRICES = (
    Name("q", "attn_q", "self_attn.q_proj"),
    Name("k", "attn_k", "self_attn.k_proj"),
    Name("v", "attn_v", "self_attn.v_proj"),
    Name("o", "attn_output", "self_attn.o_proj"),
    Name("gate", "ffn_gate", "mlp.gate_proj"),
    Name("up", "ffn_up", "mlp.up_proj"),
    Name("down", "ffn_down", "mlp.down_proj"),
)
_QK_NORMS = (
    Name("q_norm", "attn_q_norm", "self_attn.q_norm"),
    Name("k_norm", "attn_k_norm", "self_attn.k_norm"),
)
_NORMS = (
    Name("attention_norm", "attn_norm", "input_layernorm"),
    Name("feed_norm", "ffn_norm", "post_attention_layernorm"),
)
_FOUR_NORMS = (
    Name("attention_norm", "attn_norm", "input_layernorm"),
    Name("post_attention_norm", "post_attention_norm", "post_attention_layernorm"),
    Name("feed_norm", "ffn_norm", "pre_feedforward_layernorm"),
    Name("post_feed_norm", "post_ffw_norm", "post_feedforward_layernorm"),
)
EMBEDDING = ("token_embd.weight", "model.embed_tokens.weight")
NORM = ("output_norm.weight", "model.norm.weight")
HEAD = ("output.weight", "lm_head.weight")
_IGNORED = ("rope_freqs.weight", "rotary_emb.inv_freq")


class Weights:
    """Reads tensors by their part in the model, checks their shapes, and hands them to the library.

    Everything it made lives until free(). Raises ModelFileDamaged, UnsupportedModel.
    """

    def __init__(self, file: TensorFile, spec: ModelSpec, library: Library, team: int, storage: str) -> None:
        self._file, self._spec, self._library, self._team, self._storage = file, spec, library, team, storage
        self._matrices: list[int] = []
        self._vectors: list[NDArray[Any]] = []
        self._shapes = expected_shapes(spec, file.is_gguf)
        _check(file, self._shapes)

    def embedding(self) -> tuple[int, int]:
        """Return address and format of the table of embeddings, as the file has it."""
        tensor = self._file.tensor(self._of(EMBEDDING))
        self._vectors.append(tensor.data)
        return _found(tensor.data), FORMATS[tensor.format]

    def head(self) -> int:
        """Return the matrix that gives logits."""
        return self._matrix(self._of(EMBEDDING if self._spec.tied_head else HEAD))

    def norm(self) -> int:
        """Return the last norm's weights."""
        return self._vector(self._of(NORM), self._spec.norm_offset)

    def layer(self, index: int) -> dict[str, int]:
        """Return all parts of a layer by the names of library.Layer."""
        spec = self._spec
        parts = {name.part: self._matrix(self._name(name, index)) for name in _MATRICES}
        norms = (_FOUR_NORMS if spec.has_post_norms else _NORMS) + (_QK_NORMS if spec.has_qk_norm else ())
        for name in norms:
            parts[name.part] = self._vector(self._name(name, index), spec.norm_offset)
        if spec.has_qkv_bias:
            for name in _MATRICES[:3]:
                parts[f"{name.part}_bias"] = self._vector(self._name(name, index, "bias"), 0.0)
        return parts

    def free(self) -> None:
        """Give all memory back; the library must not use it any more."""
        for matrix in self._matrices:
            self._library.free("hr_matrix_free", matrix)
        self._matrices.clear()
        self._vectors.clear()

    def _of(self, names: tuple[str, str]) -> str:
        return names[0] if self._file.is_gguf else names[1]

    def _name(self, name: Name, index: int, kind: str = "weight") -> str:
        return layer_name(name, index, kind, self._file.is_gguf)

    def _matrix(self, name: str) -> int:
        tensor, (n, k) = self._file.tensor(name), self._shapes[name]
        order = self._row_order(name, n)
        source, storage = FORMATS[tensor.format], self._storage_of(tensor)
        matrix: int = self._library.call(
            "hr_matrix_new", self._team, FORMATS[storage], n, k, source, _found(tensor.data), address(order)
        )
        self._matrices.append(matrix)
        return matrix

    def _storage_of(self, tensor: RawTensor) -> str:
        return tensor.format if self._storage == "as-is" else self._storage

    def _row_order(self, name: str, num_rows: int) -> NDArray[np.int32] | None:
        """Say which row of the file is which of ours, for q and k of files that alternate between a head's halves."""
        if not self._spec.interleaved_heads or not name.startswith("blk.") or not name.endswith(_ALTERNATING):
            return None
        rows = np.arange(num_rows, dtype=np.int32).reshape(-1, self._spec.head_dim // 2, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    def _vector(self, name: str, offset: float) -> int:
        tensor = self._file.tensor(name)
        values = _floats(self._library, tensor, self._file, name) + np.float32(offset)
        if (order := self._row_order(name, len(values))) is not None:
            values = values[order]
        self._vectors.append(values)
        return _found(values)


_ALTERNATING = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


def _floats(library: Library, tensor: RawTensor, file: TensorFile, name: str) -> Floats:
    if tensor.format not in _PLAIN:
        raise UnsupportedModel(f"{file.path}: tensor {name} is {tensor.format}, must be one of {', '.join(_PLAIN)}")
    values = np.empty(tensor.shape, dtype=np.float32)
    library.free("hr_read_row", FORMATS[tensor.format], _found(tensor.data), values.size, _found(values))
    return values


def _found(array: NDArray[Any]) -> int:
    place = address(array)
    assert place is not None
    return place


def layer_name(name: Name, index: int, kind: str, is_gguf: bool) -> str:
    """Name a layer's tensor as files do; kind: weight or bias."""
    return f"blk.{index}.{name.gguf}.{kind}" if is_gguf else f"model.layers.{index}.{name.folder}.{kind}"


def expected_shapes(spec: ModelSpec, is_gguf: bool) -> dict[str, tuple[int, ...]]:
    """List the tensors a model of this spec has in its files."""
    pick = 0 if is_gguf else 1
    found: dict[str, tuple[int, ...]] = {EMBEDDING[pick]: (spec.vocab, spec.hidden), NORM[pick]: (spec.hidden,)}
    if not spec.tied_head:
        found[HEAD[pick]] = (spec.vocab, spec.hidden)
    for index in range(spec.num_layers):
        for name, kind, shape in _layer_shapes(spec):
            found[layer_name(name, index, kind, is_gguf)] = shape
    return found


def _layer_shapes(spec: ModelSpec) -> list[tuple[Name, str, tuple[int, ...]]]:
    hidden, inner = spec.hidden, spec.inner
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    outputs = {"q": queries, "k": keys, "v": keys, "o": hidden, "gate": inner, "up": inner, "down": hidden}
    inputs = {"o": queries, "down": inner}
    found: list[tuple[Name, str, tuple[int, ...]]] = [
        (name, "weight", (outputs[name.part], inputs.get(name.part, hidden))) for name in _MATRICES
    ]
    found += [(name, "weight", (hidden,)) for name in (_FOUR_NORMS if spec.has_post_norms else _NORMS)]
    if spec.has_qk_norm:
        found += [(name, "weight", (spec.head_dim,)) for name in _QK_NORMS]
    if spec.has_qkv_bias:
        found += [(name, "bias", (outputs[name.part],)) for name in _MATRICES[:3]]
    return found


def _check(file: TensorFile, wanted: dict[str, tuple[int, ...]]) -> None:
    found = file.shapes()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelFileDamaged(f"{file.path}: tensors are missing: {_listed(missing)}")
    unknown = [name for name in found if name not in wanted and not name.endswith(_IGNORED)]
    if unknown and not set(unknown) <= set(HEAD):  # a tied head that was written all the same
        raise UnsupportedModel(f"{file.path}: this architecture has no use for tensors: {_listed(unknown)}")
    wrong = [f"{name} is {found[name]}, must be {shape}" for name, shape in wanted.items() if found[name] != shape]
    if wrong:
        raise ModelFileDamaged(f"{file.path}: tensors have wrong shapes: {_listed(wrong)}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more

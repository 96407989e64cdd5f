"""From a model's files to what the native library computes with: panels, norms, biases. Owner: NativeModel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats
from headrace.core.errors import UnsupportedModel
from headrace.runners.loading.source import check_tensors
from headrace.runners.models.contract import Family, Parameter
from headrace.runners.models.decoder import EMBEDDING, HEAD, NORM, DecoderConfig
from headrace.runners.native.library import FORMATS, Library, address
from headrace.runners.native.tensors import RawTensor, TensorFile

_PLAIN = ("F32", "F16", "BF16")
_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""By the names of library.Layer."""
_VECTORS = {
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attention_norm": "input_layernorm.weight",
}
_TWO_NORMS = {"feed_norm": "post_attention_layernorm.weight"}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm.weight",
    "feed_norm": "pre_feedforward_layernorm.weight",
    "post_feed_norm": "post_feedforward_layernorm.weight",
}


class Weights:
    """Hands a model's parameters to the library, which reads the file's own bytes. What it made lives until free()."""

    def __init__(self, file: TensorFile, family: Family, config: DecoderConfig, library: Library, storage: str) -> None:
        """Check all tensors. storage: a name of FORMATS, or as-is. Raises ModelFileDamaged, UnsupportedModel."""
        self._file, self._config, self._library, self._storage = file, config, library, storage
        parameters = family.parameters(config)
        check_tensors(file, family, parameters)
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._matrices: list[int] = []
        self._arrays: list[NDArray[Any]] = []

    def embedding(self) -> tuple[int, int]:
        """Return address and format of the table of embeddings, as the file has it."""
        tensor = self._tensor(self._parameters[EMBEDDING])
        return self._keep(tensor.data), FORMATS[tensor.format]

    def head(self, team: int) -> int:
        """Return the matrix that gives logits."""
        head = self._parameters[HEAD]
        return self._matrix(team, self._parameters[head.tied_to] if head.tied_to else head)

    def norm(self) -> int:
        """Return the last norm's weights."""
        return self._vector(self._parameters[NORM])

    def layer(self, team: int, index: int) -> dict[str, int]:
        """Return all parts of a layer by the names of library.Layer."""
        vectors = _VECTORS | (_FOUR_NORMS if self._config.has_post_norms else _TWO_NORMS)
        prefix = f"model.layers.{index}"
        parts = {
            part: self._matrix(team, self._parameters[f"{prefix}.{name}.weight"]) for part, name in _MATRICES.items()
        }
        for part, name in vectors.items():
            if (parameter := self._parameters.get(f"{prefix}.{name}")) is not None:
                parts[part] = self._vector(parameter)
        return parts

    def are_float32(self) -> bool:
        """Tell whether the matrices of all layers are kept in float32."""
        suffixes = tuple(f"{name}.weight" for name in _MATRICES.values())
        matrices = (parameter for name, parameter in self._parameters.items() if name.endswith(suffixes))
        return all(self._storage_of(self._tensor(matrix).format) == "F32" for matrix in matrices)

    def free(self) -> None:
        """Give all memory back; the library must not use it any more."""
        for matrix in self._matrices:
            self._library.free("hr_matrix_free", matrix)
        self._matrices.clear()
        self._arrays.clear()

    def _matrix(self, team: int, parameter: Parameter) -> int:
        tensor, order = self._tensor(parameter), self._row_order(parameter)
        storage = self._storage_of(tensor.format)
        source, (rows, depth) = FORMATS[tensor.format], parameter.shape
        matrix: int = self._library.call(
            "hr_matrix_new", team, FORMATS[storage], rows, depth, source, address(tensor.data), address(order)
        )
        self._matrices.append(matrix)
        return matrix

    def _tensor(self, parameter: Parameter) -> RawTensor:
        return self._file.tensor(self._file.name_of(parameter))

    def _storage_of(self, format: str) -> str:
        return format if self._storage == "as-is" else self._storage

    def _row_order(self, parameter: Parameter) -> NDArray[np.int32] | None:
        """Say which row of the file is which of ours, where files alternate between the halves of a head."""
        if parameter.interleaved_heads is None or not self._file.is_gguf:
            return None
        rows = np.arange(parameter.shape[0], dtype=np.int32).reshape(parameter.interleaved_heads, -1, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    def _vector(self, parameter: Parameter) -> int:
        values = self._floats(parameter)
        return self._keep(values if self._file.is_gguf else values + np.float32(parameter.folder_offset))

    def _floats(self, parameter: Parameter) -> Floats:
        name = self._file.name_of(parameter)
        tensor = self._file.tensor(name)
        if tensor.format not in _PLAIN:
            kinds = ", ".join(_PLAIN)
            raise UnsupportedModel(f"{self._file.path}: tensor {name} is {tensor.format}, must be one of {kinds}")
        values = np.empty(tensor.shape, dtype=np.float32)
        self._library.free("hr_read_row", FORMATS[tensor.format], address(tensor.data), values.size, address(values))
        return values

    def _keep(self, array: NDArray[Any]) -> int:
        self._arrays.append(array)
        place = address(array)
        assert place is not None
        return place

"""Weights from a Hugging Face folder: config.json, and safetensors files that are memory-mapped, single or sharded."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.core.errors import ModelFileDamaged, ModelNotFound, UnsupportedModel
from headrace.core.model_files.metadata import read_json
from headrace.runners.loading.source import listed
from headrace.runners.models.contract import Family, Parameter

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_READABLE = ("F32", "F16", "BF16")


class FolderSource:
    """An open model folder as a source of weights. Implements source.WeightSource."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(path / "config.json")
        self.architecture = str(self._config.get("model_type", ""))
        self._open_files = ExitStack()
        self._file_of: dict[str, Any] = {}
        """The open file that holds a tensor, by the tensor's name."""
        try:
            for shard in _shards(path):
                self._open(path / shard)
        except BaseException:
            self.close()
            raise

    def config(self, family: Family) -> Any:
        """Read the family's config from config.json."""
        return family.read_folder(str(self.path / "config.json"), self._config)

    def name_of(self, parameter: Parameter) -> str:
        """Return the parameter's name, which is Hugging Face's, or the other one if this folder has that."""
        other = parameter.other_name
        return other if other in self._file_of and other is not None else parameter.name

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Return the parameter's shape, or that of its transpose."""
        return parameter.shape[::-1] if parameter.is_transposed_in_folders else parameter.shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List all tensors. Raises UnsupportedModel if some are not F32, F16 or BF16."""
        found = {name: file.get_slice(name) for name, file in self._file_of.items()}
        types = {name: tensor.get_dtype() for name, tensor in found.items()}
        refused = [f"{name} is {kind}" for name, kind in types.items() if kind not in _READABLE]
        if refused:
            readable = ", ".join(_READABLE)
            raise UnsupportedModel(f"{self.path}: readable tensors are {readable}, but {listed(refused)}")
        return {name: tuple(tensor.get_shape()) for name, tensor in found.items()}

    def read(self, parameter: Parameter, dtype: torch.dtype) -> Tensor:
        """Return a parameter's tensor: the file's own memory if the type is right, else a converted copy."""
        name = self.name_of(parameter)
        tensor: Tensor = self._file_of[name].get_tensor(name)
        if parameter.is_transposed_in_folders:
            tensor = tensor.t().contiguous()
        if parameter.folder_offset:
            tensor = tensor.float() + parameter.folder_offset
        return tensor.to(dtype)

    def close(self) -> None:
        """Close the files; mapped tensors stay valid."""
        self._open_files.close()

    def _open(self, file: Path) -> None:
        if not file.is_file():
            raise ModelFileDamaged(f"{file} is missing, but {_INDEX} names it")
        try:
            opened = self._open_files.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ModelFileDamaged(f"{file} can't be read: {error}") from error
        for name in opened.keys():  # noqa: SIM118 - not a dict
            if name in self._file_of:
                raise ModelFileDamaged(f"{self.path}: tensor {name} is in two files")
            self._file_of[name] = opened


def _shards(folder: Path) -> list[str]:
    """List the names of a folder's safetensors files. Raises ModelNotFound, ModelFileDamaged."""
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if not (folder / _INDEX).is_file():
        raise ModelNotFound(f"{folder} has neither {_SINGLE} nor {_INDEX}; other weight files aren't supported")
    places = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelFileDamaged(f"{folder / _INDEX}: weight_map is {places!r:.80}, must name a file for each tensor")
    shards = sorted({str(shard) for shard in places.values()})
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise ModelFileDamaged(f"{folder / _INDEX}: {outside[0]!r:.80} must be a file of this folder")
    return shards

"""Made-up weights for a model of which only the config is read: from config.json, or the metadata of a GGUF file.

Each number follows from its parameter's name and shape alone, so that a model is the same wherever it is loaded. torch
is imported where a tensor is made of them.
"""

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.core.columns import Floats
from headrace.core.errors import UnsupportedModel
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.model_files.metadata import read_json
from headrace.runners.models.contract import Family, Parameter
from headrace.runners.torch_cpu.machine import total_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RANGE = 0.05
"""Largest distance of a weight from 0, or from 1 in norms: of the order of real ones."""
_BYTES = 4


def dummy_values(name: str, shape: tuple[int, ...]) -> Floats:
    """Make up a parameter: around 1 where it is the weight of a norm, else around 0."""
    seed = int.from_bytes(hashlib.sha256(f"{name}{shape}".encode()).digest()[:8], "little")
    values = np.random.Generator(np.random.SFC64(seed)).random(shape, dtype=np.float32)
    values *= np.float32(2 * RANGE)
    values += np.float32((1 if len(shape) == 1 and name.endswith(".weight") else 0) - RANGE)
    return values


class DummySource:
    """A model's files without their weights. Implements source.WeightSource: it has just what the model needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gguf = None if path.is_dir() else GGUFFile(path)
        self._config = read_json(path / "config.json") if self._gguf is None else {}
        self._parameters: dict[str, Parameter] = {}
        """By name, but for those that are others."""
        if self._gguf is not None:
            self.architecture = self._gguf.value("general.architecture", str)
        else:
            self.architecture = str(self._config.get("model_type", ""))

    def config(self, family: Family) -> Any:
        """Read the family's config. Raises ModelFileDamaged, UnsupportedModel, also if the memory can't hold it."""
        if self._gguf is not None:
            config = family.read_gguf(self._gguf)
        else:
            config = family.read_folder(str(self.path / "config.json"), self._config)
        self._parameters = {each.name: each for each in family.parameters(config) if each.tied_to is None}
        check_memory(self.path, sum(math.prod(each.shape) for each in self._parameters.values()))
        return config

    def name_of(self, parameter: Parameter) -> str:
        """Return the parameter's own name."""
        return parameter.name

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Return the parameter's own shape."""
        return parameter.shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List all parameters."""
        return {name: parameter.shape for name, parameter in self._parameters.items()}

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of this name."""
        return self._parameters[name]

    def values(self, name: str) -> Floats:
        """Make up the parameter of this name."""
        return dummy_values(name, self._parameters[name].shape)

    def read(self, parameter: Parameter, dtype: "torch.dtype") -> "Tensor":
        """Make up a parameter's tensor."""
        import torch

        return torch.from_numpy(self.values(parameter.name)).to(dtype)

    def close(self) -> None:
        """Unmap the file, if there is one."""
        if self._gguf is not None:
            self._gguf.close()


def check_memory(path: Path, num_weights: int) -> None:
    """Refuse a model that this machine can't hold, before anything is made up. Raises UnsupportedModel."""
    needed, there = _BYTES * num_weights, total_memory()
    if needed > there:
        raise UnsupportedModel(
            f"{path}: {num_weights} weights in float32 are {needed / 2**30:.1f} GiB, this machine has"
            f" {there / 2**30:.1f} GiB"
        )

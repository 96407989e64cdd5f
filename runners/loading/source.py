"""Where weights come from: the protocol of a model's files, and how they become a model's parameters.

Every parameter is checked by name, shape and type before the first one is read, and none is left uninitialised: each is
made from the file's own tensor, or the load fails.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.runners.loading.progress import with_progress
from headrace.runners.models.contract import Family, Parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MOST_LISTED = 8


class TensorList(Protocol):
    """What tensors the open file or files of one model hold."""

    path: Path
    architecture: str

    def config(self, family: Family) -> Any:
        """Read the family's ModelConfig. Raises ModelFileDamaged, UnsupportedModel."""

    def name_of(self, parameter: Parameter) -> str:
        """Return what this kind of file calls a parameter."""

    def stored_shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Return the shape that this kind of file stores a parameter in."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """List all tensors. Raises UnsupportedModel if one has an unreadable type."""

    def close(self) -> None:
        """Let go of the files; tensors that were read stay valid."""


class WeightSource(TensorList, Protocol):
    """The same with a way to read them."""

    def read(self, parameter: Parameter, dtype: "torch.dtype") -> "Tensor":
        """Return a parameter's tensor. Called from several threads."""


def load_parameters(
    source: WeightSource, family: Family, config: Any, dtype: "torch.dtype", threads: int
) -> "dict[str, Tensor]":
    """Read all parameters of a model by name. Raises ModelFileDamaged, UnsupportedModel listing wrong tensors."""
    parameters = family.parameters(config)
    check_tensors(source, family, parameters)
    stored = [parameter for parameter in parameters if parameter.tied_to is None]
    stored.sort(key=lambda parameter: -math.prod(parameter.shape))
    with ThreadPoolExecutor(threads, "loading") as pool:
        read = pool.map(lambda parameter: source.read(parameter, dtype), stored)
        tensors = with_progress(read, len(stored), "tensors")
        weights = {parameter.name: tensor for parameter, tensor in zip(stored, tensors, strict=True)}
    for parameter in parameters:
        if parameter.tied_to is not None:
            weights[parameter.name] = weights[parameter.tied_to]
    return weights


def check_tensors(source: TensorList, family: Family, parameters: Sequence[Parameter]) -> None:
    """Compare a file's tensors with what the model needs. Raises ModelFileDamaged or UnsupportedModel listing names."""
    found = source.shapes()
    wanted = {source.name_of(parameter): parameter for parameter in parameters}
    missing = [name for name, parameter in wanted.items() if name not in found and parameter.tied_to is None]
    if missing:
        raise ModelFileDamaged(f"{source.path}: tensors are missing: {listed(missing)}")
    unknown = [name for name in found if name not in wanted and not any(fnmatch(name, p) for p in family.ignored)]
    if unknown:
        raise UnsupportedModel(f"{source.path}: architecture {family.name} has no use for tensors: {listed(unknown)}")
    shapes = {name: source.stored_shape(parameter) for name, parameter in wanted.items()}
    wrong = [
        f"{name} is {found[name]}, must be {shape}"
        for name, shape in shapes.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        raise ModelFileDamaged(f"{source.path}: tensors have wrong shapes: {listed(wrong)}")


def listed(names: Sequence[str]) -> str:
    """Write a list for an error message, cut where it gets long."""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more

"""Memory for tensors of many megabytes, taken through numpy, which does two things that torch's allocator doesn't."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64
"""Bytes: what torch's own tensors have."""


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate memory to be written at once: numpy asks the kernel for huge pages, so that first writes are fast."""
    return _allocate(np.empty, shape, dtype)


def zero_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate zeros that take no memory until they are written. Raises MemoryError."""
    return _allocate(np.zeros, shape, dtype)


def _allocate(make: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    buffer = make(nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return torch.from_numpy(buffer[start : start + nbytes]).view(dtype).view(shape)

"""Columns of messages: numpy arrays as raw little-endian bytes and back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def pack_ints(values: Sequence[int] | NDArray[np.integer]) -> bytes:
    """Encode whole numbers as int32 bytes. Raises OverflowError where one doesn't fit."""
    return np.asarray(values, dtype=_INT32).tobytes()


def ints(column: bytes) -> Ints:
    """View int32 bytes as a read-only array, without a copy."""
    return np.frombuffer(column, dtype=_INT32)


def pack_floats(values: Sequence[float] | NDArray[np.floating]) -> bytes:
    """Encode numbers as float32 bytes."""
    return np.asarray(values, dtype=_FLOAT32).tobytes()


def floats(column: bytes) -> Floats:
    """View float32 bytes as a read-only array, without a copy."""
    return np.frombuffer(column, dtype=_FLOAT32)

"""The C interface of the native library through ctypes, which lets the GIL go during calls. Mirrors csrc/model.h."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = {name: i for i, name in enumerate(("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"))}
"""Storage formats by the names that GGUF gives them."""
MODES = {"accurate": 0, "fast": 1}
GATES = {"silu": 0, "gelu": 1}


class Embedding(Structure):
    """struct hr_embedding."""

    _fields_ = (("rows", c_void_p), ("format", c_int32), ("scale", c_float))


class Rotary(Structure):
    """struct hr_rotary."""

    _fields_ = (("frequencies", c_void_p), ("scale", c_float))


class Model(Structure):
    """struct hr_model."""

    _fields_ = (
        *((name, c_int32) for name in ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim")),
        *((name, c_int32) for name in ("inner", "vocab")),
        ("gate", c_int32),
        ("mode", c_int32),
        ("norm_eps", c_float),
        ("query_scale", c_float),
        ("block_size", c_int32),
        ("is_half_cache", c_int32),
        ("num_groups", c_int32),
        ("num_rotaries", c_int32),
        ("num_blocks", c_void_p),
        ("rotaries", c_void_p),
        ("embedding", Embedding),
        ("norm", c_void_p),
        ("head", c_void_p),
    )


class Layer(Structure):
    """struct hr_layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *((name, c_void_p) for name in ("q_bias", "k_bias", "v_bias", "o_bias")),
        *((name, c_void_p) for name in ("attention_norm", "feed_norm", "post_attention_norm", "post_feed_norm")),
        *((name, c_void_p) for name in ("q_norm", "k_norm")),
        *((name, c_int32) for name in ("window", "group", "rotary")),
    )


class Step(Structure):
    """struct hr_batch."""

    _fields_ = (
        *((name, c_int32) for name in ("num_tokens", "num_rows", "num_logits")),
        *((name, c_void_p) for name in ("token_ids", "positions", "starts", "slots", "tables")),
        ("table_width", c_int32),
        ("logit_tokens", c_void_p),
        ("logits", c_void_p),
    )


class Rows(Structure):
    """struct hr_rows."""

    _fields_ = (
        *((name, c_int32) for name in ("max_rows", "num_groups", "block_size", "token_stride", "table_stride")),
        *((name, c_void_p) for name in ("token_ids", "num_ids", "num_prompt", "num_computed", "tables", "sampling")),
    )


_INT, _POINTER = c_int32, c_void_p
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "hr_error": (c_char_p, ()),
    "hr_team_new": (_POINTER, (_INT, _INT)),
    "hr_team_free": (None, (_POINTER,)),
    "hr_matrix_new": (_POINTER, (_POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER)),
    "hr_matrix_free": (None, (_POINTER,)),
    "hr_engine_new": (_POINTER, (_POINTER, POINTER(Model), POINTER(Layer))),
    "hr_engine_free": (None, (_POINTER,)),
    "hr_step": (c_bool, (_POINTER, POINTER(Step))),
    "hr_logits": (c_bool, (_POINTER, _POINTER, _INT, _POINTER)),
    "hr_rows_new": (_POINTER, (_POINTER, _POINTER, POINTER(Rows))),
    "hr_rows_free": (None, (_POINTER,)),
    "hr_advance": (c_bool, (_POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER)),
    "hr_sample": (c_bool, (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER)),
    "hr_report": (
        c_bool,
        (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "hr_multiply": (c_bool, (_POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER)),
    "hr_read_row": (None, (_INT, _POINTER, _INT, _POINTER)),
}


class Library:
    """A loaded native library. It checks what it is given, which is our own: calls that fail raise RuntimeError."""

    def __init__(self, file: Path) -> None:
        self._dll = ctypes.CDLL(str(file))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._dll, name)
            function.restype, function.argtypes = result, arguments

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that returns something true, or fails."""
        result = getattr(self._dll, name)(*arguments)
        if not result:
            raise RuntimeError(f"{name}: {self._dll.hr_error().decode()}")
        return result

    def free(self, name: str, *arguments: Any) -> None:
        """Call a function that returns nothing and can't fail."""
        getattr(self._dll, name)(*arguments)


def address(array: NDArray[Any] | None) -> int | None:
    """Return where an array's numbers lie, None for None. The caller keeps the array alive. It must be contiguous."""
    if array is None:
        return None
    assert array.flags.c_contiguous, "the native library reads contiguous arrays only"
    place: int = array.__array_interface__["data"][0]  # 5 times faster than array.ctypes.data
    return place


def pointers(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return the addresses of arrays, as an array that C can read."""
    return np.array([address(array) for array in arrays], dtype=np.uint64)

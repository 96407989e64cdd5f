"""Native models for tests, and the library's single kernels as functions of numpy arrays."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from batches import context_of

from headrace.runners.native.build import choose_target, ensure_library
from headrace.runners.native.library import FORMATS, MODES, Library, address
from headrace.runners.native.model import NativeModel
from headrace.runners.native.options import NativeOptions

PLAIN = ("F32", "F16", "BF16")
QUANTS = {"Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q4_K": 256, "Q6_K": 256}
"""Depths of a block."""
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q4_K": 144, "Q6_K": 210}
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
"""Where f16 numbers stand in a block."""


def load_native(path: Path, config: dict[str, Any] | None = None, **options: Any) -> NativeModel:
    """Load a model into the native runner, with few blocks and one thread unless the test says else."""
    model = NativeModel(context_of(path, **(config or {})), NativeOptions(**options))
    model.load()
    return model


def random_rows(kind: str, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make rows of a format: their bytes (n, row bytes), and what they mean, (n, k) float32."""
    rng = np.random.default_rng(seed)
    if kind in PLAIN:
        values = rng.standard_normal((n, k), dtype=np.float32)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    else:
        raw = rng.integers(0, 256, (n, k // QUANTS[kind], BLOCK_BYTES[kind]), dtype=np.uint8)
        for at in HALVES[kind]:
            scales = rng.uniform(-0.1, 0.1, raw.shape[:2]).astype(np.float16)
            raw[:, :, at : at + 2] = scales[:, :, None].view(np.uint8)
    raw = np.ascontiguousarray(raw).reshape(n, -1).view(np.uint8)
    return raw, gguf.quants.dequantize(raw.copy(), gguf.GGMLQuantizationType[kind])


class Kernels:
    """A loaded library and a team of threads."""

    def __init__(self, file: Path | None = None, threads: int = 1) -> None:
        self.library = Library(file or ensure_library(choose_target()))
        self.team = self.library.call("hr_team_new", threads, 0)

    def multiply(
        self, raw: np.ndarray, kind: str, x: np.ndarray, mode: str = "accurate", stored: str = ""
    ) -> np.ndarray:
        """Return x (rows, k) times the transpose of the rows in `raw`, stored as they are or in another format."""
        matrix = self.matrix(raw, kind, x.shape[1], stored)
        out = np.full((len(x), len(raw)), np.nan, dtype=np.float32)
        self.library.call("hr_multiply", self.team, matrix, MODES[mode], address(x), len(x), address(out))
        self.library.free("hr_matrix_free", matrix)
        return out

    def matrix(self, raw: np.ndarray, kind: str, k: int, stored: str = "") -> int:
        """Pack a matrix."""
        source, target = FORMATS[kind], FORMATS[stored or kind]
        return self.library.call("hr_matrix_new", self.team, target, len(raw), k, source, address(raw), None)

    def read_row(self, raw: np.ndarray, kind: str, k: int) -> np.ndarray:
        """Return one row as floats."""
        out = np.empty(k, dtype=np.float32)
        self.library.free("hr_read_row", FORMATS[kind], address(raw), k, address(out))
        return out

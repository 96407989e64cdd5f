"""Rotary positions: the angle per position of each pair of numbers, for all ways of stretching a context.

Sources: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN), section 3; Llama 3.1.
Computed in float32 in transformers' order, so that angles of far positions are the same.
"""

import math
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from headrace.core.columns import Floats
from headrace.core.errors import UnsupportedModel
from headrace.runners.models.checks import Positive, checked

_KINDS = ("default", "linear", "llama3", "yarn")


class Rope(Struct, frozen=True):
    """One way to turn positions into angles; field names are those of Hugging Face's rope_parameters."""

    rope_theta: Positive = 10000.0
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: Positive = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] | None = None
    """By which GGUF files of Llama 3 divide the frequencies; they come with rope_type default."""

    def frequencies(self, head_dim: int) -> Floats:
        """Return (head_dim / 2,) radians per position."""
        steps = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        powers: Floats = np.power(np.float32(self.rope_theta), steps)
        found: Floats = np.float32(1) / powers
        if self.divisors is not None:
            return np.divide(found, np.array(self.divisors, dtype=np.float32), dtype=np.float32)
        if self.rope_type == "linear":
            return found / np.float32(self.factor)
        if self.rope_type == "llama3":
            return self._llama3(found)
        return self._yarn(found, head_dim) if self.rope_type == "yarn" else found

    def scale(self) -> float:
        """Return what cosines and sines are multiplied by."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _mscale(self, by: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * by * math.log(self.factor) + 1.0

    def _llama3(self, found: Floats) -> Floats:
        length = self.original_max_position_embeddings
        waves = np.float32(2 * math.pi) / found
        smooth = (np.float32(length) / waves - np.float32(self.low_freq_factor)) / np.float32(
            self.high_freq_factor - self.low_freq_factor
        )
        stretched = found / np.float32(self.factor)
        between: Floats = (1 - smooth) * found / np.float32(self.factor) + smooth * found
        is_long, is_short = waves > length / self.low_freq_factor, waves < length / self.high_freq_factor
        return np.where(is_long, stretched, np.where(is_short, found, between)).astype(np.float32)

    def _yarn(self, found: Floats, head_dim: int) -> Floats:
        low, high = (self._dimension(turns, head_dim) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (np.arange(head_dim // 2, dtype=np.float32) - low) / np.float32(high - low if high > low else 0.001)
        keep = 1 - np.clip(ramp, 0, 1).astype(np.float32)
        mixed: Floats = found / np.float32(self.factor) * (1 - keep) + found * keep
        return mixed

    def _dimension(self, turns: float, head_dim: int) -> float:
        """Find the dimension that turns so often over the original context."""
        length = self.original_max_position_embeddings
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(self.rope_theta))


def read_rope(where: str, values: dict[str, Any], default_theta: float) -> Rope:
    """Read Hugging Face's rope_parameters, or the older rope_scaling. Raises UnsupportedModel, ModelFileDamaged."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in _KINDS:
        raise UnsupportedModel(f"{where}: rope type {kind!r:.80} isn't built in; known are {', '.join(_KINDS)}")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{where}: partial_rotary_factor is {values['partial_rotary_factor']!r:.80}, must be 1")
    known = {field: values[field] for field in Rope.__struct_fields__ if values.get(field) is not None}
    rope = checked(where, Rope, {"rope_theta": default_theta, **known, "rope_type": kind})
    if kind in ("llama3", "yarn") and rope.original_max_position_embeddings < 1:
        raise UnsupportedModel(f"{where}: rope type {kind} needs original_max_position_embeddings")
    return rope

"""Runner `native` as a plugin: what a user can choose, and its builder. Imports the rest when it is built."""

from typing import Literal

from msgspec import Struct

from headrace.core.interfaces import Runner
from headrace.core.providers import RunnerContext


class NativeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.runner] of native."""

    mode: Literal["accurate", "fast"] = "accurate"
    """How quantised weights meet their inputs: accurate rounds inputs to 16 bits per group of 32, fast rounds those of
    4-bit weights to 8 bits."""
    weights: Literal["as-is", "float32", "float16", "bfloat16"] | None = None
    """How weights are stored; as-is keeps the file's own numbers, quantised ones too. None: what engine.dtype says,
    as-is where that is auto. Sums are float32 always."""
    kv_dtype: Literal["auto", "float32", "float16"] = "auto"
    """How K and V are stored. auto: float32 beside float32 weights, else float16."""
    pin_threads: bool = False
    """Bind each compute thread to a core of its own."""


def build(context: RunnerContext, options: NativeOptions) -> Runner:
    """Build the runner."""
    from headrace.runners.native.model import NativeModel
    from headrace.runners.worker import make_worker

    model = NativeModel(context, options)
    return make_worker(model, context, model.sample, model.advance)

"""Load a model: open its files, find its family, read its parameters, build it."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import torch
from msgspec import Struct

from headrace.core.providers import RunnerContext
from headrace.runners.loading.dummy import DummySource
from headrace.runners.loading.folder_source import FolderSource
from headrace.runners.loading.gguf_source import GGUFSource
from headrace.runners.loading.source import WeightSource, load_parameters
from headrace.runners.models.contract import CausalModel, ModelConfig
from headrace.runners.models.generic import GenericModel
from headrace.runners.models.layers import Ops
from headrace.runners.models.registry import find_family


class LoadedModel(Struct, frozen=True):
    """A model ready to run."""

    model: CausalModel | GenericModel
    config: ModelConfig
    max_model_len: int
    """Tokens of the longest sequence it can run."""
    timings: dict[str, float]
    """Seconds by stage: read (headers and config), dequantise (weights into memory), build."""


def open_source(path: Path, is_dummy: bool = False) -> WeightSource:
    """Open a model: a folder is Hugging Face's, a file is GGUF; dummy: its weights are made up. Raises ModelError."""
    if is_dummy:
        return DummySource(path)
    return FolderSource(path) if path.is_dir() else GGUFSource(path)


def load_model(context: RunnerContext, dtype: torch.dtype, ops: Ops, threads: int) -> LoadedModel:
    """Load the context's model for sequences of at most engine.max_model_len tokens. Raises ModelError, ConfigError."""
    path, clock, max_model_len = context.need_model(), context.clock, context.config.max_model_len
    times = [clock()]
    with closing(open_source(path, context.config.load_format == "dummy")) as source:
        if path.is_dir() and source.architecture not in context.families:
            return _load_generic(context, source.architecture, dtype)
        family = find_family(str(path), source.architecture, context.families)
        config: ModelConfig = source.config(family)
        times.append(clock())
        weights = load_parameters(source, family, config, dtype, threads)
    times.append(clock())
    longest = min(max_model_len or config.context_length, config.context_length)
    model = family.build(config, weights, ops, longest)
    times.append(clock())
    seconds = [end - start for start, end in pairwise(times)]
    return LoadedModel(model, config, longest, dict(zip(("read", "dequantise", "build"), seconds, strict=True)))


def _load_generic(context: RunnerContext, architecture: str, dtype: torch.dtype) -> LoadedModel:
    """Let transformers load and run a folder of an architecture that isn't built in."""
    from headrace.runners.loading.generic import is_generic, load_generic

    path, start = context.need_model(), context.clock()
    if not is_generic(architecture):
        find_family(str(path), architecture, context.families)  # raises, naming what is known
    model = load_generic(path, dtype, is_dummy=context.config.load_format == "dummy")
    longest = min(context.config.max_model_len or model.config.context_length, model.config.context_length)
    seconds = {"read": 0.0, "dequantise": context.clock() - start, "build": 0.0}
    return LoadedModel(model, model.config, longest, seconds)

"""Runner `auto`: the fastest one that can run the model on this machine."""

import logging
from importlib.util import find_spec
from typing import Literal

from headrace.core.errors import ConfigError, UnsupportedModel
from headrace.core.interfaces import Runner, StepModel
from headrace.core.providers import RunnerContext

log = logging.getLogger("headrace")

Choice = Literal["native", "torch"]


def build(context: RunnerContext, options: None) -> Runner:
    """Build `native` where it can run the model, else `torch`."""
    if choose(context) == "native":
        from headrace.runners.native.options import NativeOptions, build

        return build(context, NativeOptions())
    return build_torch(context, None)


def build_torch(context: RunnerContext, options: None) -> Runner:
    """Build `torch`. Raises ConfigError where its packages are missing."""
    from headrace.runners.worker import make_worker

    return make_worker(torch_model(context), context)


def build_model(context: RunnerContext, name: Choice | Literal["auto"]) -> StepModel:
    """Build the model alone of one of these runners."""
    if name == "torch" or (name == "auto" and choose(context) == "torch"):
        return torch_model(context)
    from headrace.runners.native.model import NativeModel
    from headrace.runners.native.options import NativeOptions

    return NativeModel(context, NativeOptions())


def torch_model(context: RunnerContext) -> StepModel:
    """Build the model of runner `torch`. Raises ConfigError where its packages are missing."""
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"runner 'torch', which this model or machine needs or use.runner names, lacks {', '.join(missing)}:"
            " pip install 'headrace[torch]'"
        )
    from headrace.runners.torch_cpu.model import TorchModel

    return TorchModel(context)


def choose(context: RunnerContext) -> Choice:
    """Choose a runner, and log why if it isn't `native`. Raises ModelError where no runner can read the model."""
    reason = _why_not_native(context)
    if reason is None:
        return "native"
    log.warning("runner torch instead of native: %s", reason)
    return "torch"


def _why_not_native(context: RunnerContext) -> str | None:
    from headrace.runners.native.build import can_have_library, choose_target
    from headrace.runners.native.read import read_config
    from headrace.runners.native.tensors import open_tensors

    if not can_have_library(choose_target()):
        return "its library isn't built yet, and there is no C++ compiler (Debian: apt install g++)"
    file = open_tensors(context.need_model(), is_dummy=context.config.load_format == "dummy")
    try:
        read_config(file, context.families)
    except UnsupportedModel as error:
        return str(error)
    finally:
        file.close()
    return None

"""Providers, the choices that plugins register, and the contexts that those are built from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.extensions import ProcessorBuilder, Proposer, no_processors
from headrace.core.interfaces import KVManager, Policy
from headrace.core.messages import RunnerReady

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Provider(Struct, frozen=True):
    """One choice for one role, as a plugin registers it."""

    name: str
    """What plugins.toml names."""
    build: Callable[..., Any]
    """Called as build(context, options) with the role's context and an instance of `options`; imports happen inside."""
    options: type[Struct] | None = None
    """Struct that [options.<role>] is decoded into; None takes no options."""
    summary: str = ""
    """One line for `headrace plugins`."""
    runs_in_core: bool = False
    """Of a runner: it computes without holding the GIL, so that it may share the core's process."""


class TextContext(Struct, frozen=True):
    """What a tokenizer or a prompt hasher is built from."""

    config: EngineConfig
    model: Path | None
    """GGUF file or model folder; None in an engine without a model."""

    def need_model(self) -> Path:
        """Return the model. Raises ConfigError in an engine without one."""
        if self.model is None:
            raise ConfigError("no model was named, but the chosen runner or tokenizer reads one; name a model")
        return self.model


class ProcessorContext(TextContext, frozen=True):
    """What a logits processor is built from."""

    vocab_size: int


class RunnerContext(TextContext, frozen=True):
    """What a runner or a proposer is built from."""

    max_rows: int
    clock: Clock
    proposer: Proposer | None = None
    """Of drafts, for the runner; None: engine.num_speculative_tokens is 0."""
    build_processor: ProcessorBuilder = no_processors
    families: Mapping[str, Callable[[], Any]] = {}
    """By architecture, what returns its Family (runners/models/contract.py)."""


class CoreContext(Struct, frozen=True):
    """What a KV manager, policy or scheduler is built from."""

    config: EngineConfig
    facts: RunnerReady
    max_rows: int
    clock: Clock


class SchedulerContext(Struct, frozen=True):
    """What a scheduler is built from, beside CoreContext."""

    core: CoreContext
    kv: KVManager
    policy: Policy

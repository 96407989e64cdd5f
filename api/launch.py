"""The only place that wires parts together: providers become a runner, a scheduler and three actors on one loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.core.channel import Inbox
from headrace.core.config import Config
from headrace.core.engine import EngineCore
from headrace.core.errors import ConfigError
from headrace.core.input import InputActor
from headrace.core.interfaces import (
    CoreContext,
    PromptHasher,
    Runner,
    RunnerContext,
    Scheduler,
    SchedulerContext,
    TextContext,
    Tokenizer,
)
from headrace.core.messages import RunnerReady, ToCore, ToFrontend, ToInput, ToOutput
from headrace.core.output import OutputActor
from headrace.plugins.manager import load_plugins
from headrace.plugins.registry import Registry

ROWS_PER_SEQ = 2
"""Rows of ended requests wait for the steps in flight, so that there are more rows than running requests."""
OBJECT_ROLES = ("policy", "runner", "tokenizer")
"""Roles for which Engine also takes an object."""


class Parts(Struct, frozen=True):
    """Everything of one engine that lives until it is closed."""

    config: Config
    facts: RunnerReady
    runner: Runner
    scheduler: Scheduler
    tokenizer: Tokenizer
    hash_prompt: PromptHasher | None


async def load(config: Config, model: str | Path | None, objects: dict[str, Any]) -> Parts:
    """Check the plugins, load model and tokenizer off the loop, and build the engine's parts.

    objects: by role, an object to use instead of the provider that [use] names.
    Raises ConfigError, ModelError.
    """
    for role, value in objects.items():
        if role not in OBJECT_ROLES:
            raise ConfigError(f"{role} is {value!r}, must be a name; objects are for {', '.join(OBJECT_ROLES)} only")
    registry = load_plugins(config)
    path = await asyncio.to_thread(_find_model, model)
    text = TextContext(config.engine, path)
    max_rows = ROWS_PER_SEQ * config.engine.max_num_seqs
    runner: Runner = objects.get("runner") or registry.build_runner(
        RunnerContext(config.engine, path, max_rows=max_rows, clock=time.monotonic)
    )
    try:
        facts, tokenizer = await _gather(
            runner.load, lambda: objects.get("tokenizer") or registry.build_tokenizer(text)
        )
        context = CoreContext(config.engine, facts, max_rows, time.monotonic)
        scheduler = _build_scheduler(registry, context, objects)
        return Parts(config, facts, runner, scheduler, tokenizer, registry.build_prompt_hasher(text))
    except BaseException:
        runner.close()
        raise


async def _gather(*work: Callable[[], Any]) -> list[Any]:
    """Run functions on threads side by side; the first error is raised once all have ended."""
    results = await asyncio.gather(*(asyncio.to_thread(function) for function in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _find_model(model: str | Path | None) -> Path | None:
    if model is None:
        return None
    from headrace.core.model_files.resolve import resolve_model

    return resolve_model(model)


def _build_scheduler(registry: Registry, context: CoreContext, objects: dict[str, Any]) -> Scheduler:
    policy = objects.get("policy") or registry.build_policy(context)
    return registry.build_scheduler(SchedulerContext(context, registry.build_kv(context), policy))


async def run_inline(
    parts: Parts,
    to_input: Inbox[ToInput],
    to_frontend: Inbox[ToFrontend],
    handle_frontend: Callable[[list[ToFrontend]], None],
) -> None:
    """Run all actors on this loop until cancelled or one of them fails; the runner is closed at the end."""
    to_output: Inbox[ToOutput] = Inbox()
    depth = 2 if parts.config.engine.async_scheduling else 1
    core = EngineCore(parts.scheduler, parts.runner, to_output.send, depth)

    def send_core(messages: Sequence[ToCore]) -> None:
        core.inbox.send(*messages)

    def send_frontend(_number: int, messages: list[ToFrontend]) -> None:
        to_frontend.send(*messages)

    input_actor = InputActor(parts.tokenizer, parts.config.engine, parts.facts, send_core, parts.hash_prompt)
    output_actor = OutputActor(parts.tokenizer, send_frontend, core.inbox.send)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(to_input.serve(input_actor.handle), name="headrace-input")
            group.create_task(core.run(), name="headrace-core")
            group.create_task(to_output.serve(output_actor.handle), name="headrace-output")
            group.create_task(to_frontend.serve(handle_frontend), name="headrace-frontend")
    finally:
        parts.runner.close()

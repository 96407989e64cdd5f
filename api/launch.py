"""The only place that wires parts together: providers become actors, and actors an engine on one loop.

Engines in several processes build the same parts here, one process each (processes/), and are launched by split.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from headrace.core.channel import Inbox
from headrace.core.config import Config
from headrace.core.engine import EngineCore
from headrace.core.errors import ConfigError
from headrace.core.input import InputActor
from headrace.core.interfaces import Runner, Scheduler, Tokenizer
from headrace.core.messages import RunnerReady, ToCore, ToFrontend, ToInput, ToOutput
from headrace.core.output import OutputActor
from headrace.core.process import Spec
from headrace.core.providers import CoreContext, RunnerContext, SchedulerContext, TextContext
from headrace.frontend import Frontend
from headrace.plugins.manager import load_plugins

log = logging.getLogger("headrace")

ROWS_PER_SEQ = 2
"""Rows of ended requests wait for the steps in flight, so that there are more rows than running requests."""
OBJECT_ROLES = ("policy", "runner", "tokenizer")
"""Roles for which Engine also takes an object."""


class Placement(Protocol):
    """Where the actors of an engine live."""

    number: int
    """Of the frontend here among those of the engine."""

    async def start(self, frontend: Frontend) -> RunnerReady:
        """Load everything and connect the frontend. Raises ConfigError, ModelError, EngineClosed."""

    def pids(self) -> dict[str, int]:
        """Return the processes it started, by role."""

    async def close(self) -> None:
        """Release everything; idempotent."""

    def release(self) -> None:
        """Release at once what the end of the loop that it ran on has left; idempotent."""


class Builder:
    """Builds an engine's parts from a config. Raises PluginError, ConfigError at once where it contradicts itself.

    objects: by role, an object to use instead of the provider that [use] names.
    """

    def __init__(self, config: Config, model: Path | None, objects: dict[str, Any] | None = None) -> None:
        self._objects = objects or {}
        for role, value in self._objects.items():
            if role not in OBJECT_ROLES:
                raise ConfigError(
                    f"{role} is {value!r}, must be a name; objects are for {', '.join(OBJECT_ROLES)} only"
                )
        self._config = config.engine
        self._registry = load_plugins(config)
        self._text = TextContext(self._config, model)
        self._max_rows = ROWS_PER_SEQ * self._config.max_num_seqs

    @classmethod
    def from_spec(cls, spec: Spec) -> "Builder":
        """Build in a child process what its launcher asks for."""
        return cls(spec.config, None if spec.model is None else Path(spec.model))

    def runs_in_core(self) -> bool:
        """Tell whether the runner may share the core's process."""
        return self._registry.chosen["runner"].provider.runs_in_core

    def runner(self) -> Runner:
        """Build the runner; it isn't loaded yet."""
        context = RunnerContext(
            self._config,
            self._text.model,
            max_rows=self._max_rows,
            clock=time.monotonic,
            build_processor=partial(self._registry.build_processor, self._text),
            families=self._registry.families(self._text),
        )
        context = replace(context, proposer=self._registry.build_proposer(context))
        runner: Runner = self._object("runner", lambda: self._registry.build_runner(context))
        return runner

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer."""
        tokenizer: Tokenizer = self._object("tokenizer", lambda: self._registry.build_tokenizer(self._text))
        return tokenizer

    def scheduler(self, facts: RunnerReady) -> Scheduler:
        """Build the scheduler with its policy and KV manager."""
        context = CoreContext(self._config, facts, self._max_rows, time.monotonic)
        policy = self._object("policy", lambda: self._registry.build_policy(context))
        return self._registry.build_scheduler(SchedulerContext(context, self._registry.build_kv(context), policy))

    def _object(self, role: str, build: Callable[[], Any]) -> Any:
        """Return the object a user gave, which may count as false, such as an empty queue; else build one."""
        return self._objects[role] if role in self._objects else build()

    def input_actor(self, tokenizer: Tokenizer, facts: RunnerReady, send: Callable[..., None]) -> InputActor:
        """Build the input actor; `send(*messages)` goes to the core."""

        def send_core(messages: Sequence[ToCore]) -> None:
            send(*messages)

        hash_prompt = self._registry.build_prompt_hasher(self._text)
        return InputActor(tokenizer, self._config, facts, send_core, hash_prompt, self._registry.check_processor)

    def core(self, runner: Runner, scheduler: Scheduler, publish: Callable[[ToOutput], None]) -> EngineCore:
        """Build the engine's core; its runner is loaded."""
        return EngineCore(scheduler, runner, publish, depth=2 if self._config.async_scheduling else 1)


class Inline:
    """All actors on the caller's loop, linked by inboxes."""

    number = 0

    def __init__(self, config: Config, model: Path | None, objects: dict[str, Any] | None = None) -> None:
        self._builder = Builder(config, model, objects)
        self._actors: asyncio.Task[None] | None = None
        self._runner: Runner | None = None

    async def start(self, frontend: Frontend) -> RunnerReady:
        """Load model and tokenizer off the loop, and start the actors."""
        self._runner = runner = await asyncio.to_thread(self._builder.runner)  # it may look into the model
        try:
            facts: RunnerReady
            facts, tokenizer = await _gather(runner.load, self._builder.tokenizer)
            actors = self._link(frontend, facts, tokenizer, runner)
        except BaseException:
            await asyncio.to_thread(runner.close)
            raise
        self._actors = asyncio.create_task(self._run(frontend, runner, actors), name="headrace")
        await asyncio.sleep(0)  # it has begun: whatever ends it from now on releases the runner
        return facts

    def _link(self, frontend: Frontend, facts: RunnerReady, tokenizer: Tokenizer, runner: Runner) -> "Actors":
        """Build the actors and the inboxes between them, and connect the frontend."""
        to_input: Inbox[ToInput] = Inbox()
        to_output: Inbox[ToOutput] = Inbox()
        core = self._builder.core(runner, self._builder.scheduler(facts), to_output.send)

        def send_frontend(_number: int, messages: list[ToFrontend]) -> None:
            frontend.inbox.send(*messages)

        input_actor = self._builder.input_actor(tokenizer, facts, core.inbox.send)
        output_actor = OutputActor(tokenizer, send_frontend, core.inbox.send)
        frontend.connect(to_input.send)
        return {
            "input": partial(to_input.serve, input_actor.handle),
            "core": core.run,
            "output": partial(to_output.serve, output_actor.handle),
            "frontend": partial(frontend.inbox.serve, frontend.handle),
        }

    async def _run(self, frontend: Frontend, runner: Runner, actors: "Actors") -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for name, serve in actors.items():
                    group.create_task(serve(), name=f"headrace-{name}")
        except BaseExceptionGroup as failed:
            cause = failed.exceptions[0]
            log.error("the engine failed", exc_info=cause)
            frontend.close(f"the engine failed: {type(cause).__name__}: {cause}")
        finally:
            await asyncio.to_thread(runner.close)  # it may wait for a step

    def pids(self) -> dict[str, int]:
        """Return no processes."""
        return {}

    async def close(self) -> None:
        """Stop the actors and release the runner; idempotent."""
        if self._actors is not None:
            self._actors.cancel()
            await asyncio.wait([self._actors])

    def release(self) -> None:
        """Release the runner: the loop has ended, and the actors with it; idempotent."""
        if self._runner is not None:
            self._runner.close()


Actors = dict[str, Callable[[], Coroutine[Any, Any, None]]]
"""What serves each actor until it is cancelled, by name."""


async def _gather(*work: Callable[[], Any]) -> list[Any]:
    """Run functions on threads side by side; the first error is raised once all have ended."""
    results = await asyncio.gather(*(asyncio.to_thread(function) for function in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def find_model(model: str | Path | None, revision: str | None = None) -> Path | None:
    """Find a model by folder, file, catalogue name or hub id. Raises ModelNotFound, ConfigError."""
    if model is None:
        return None
    from headrace.core.model_files.resolve import resolve_model

    return resolve_model(model, revision)

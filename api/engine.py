"""Engine: the asynchronous Python API, on whatever event loop it is used."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from msgspec import convert
from msgspec.structs import fields

from headrace.ask import Ask, Message, PromptLike, RequestOptions, ask_chat, ask_prompt, check_prompt, check_token_ids
from headrace.core.calls import (
    Detokenize,
    GetStats,
    GetTrace,
    Pause,
    Ping,
    Pong,
    ResetPrefixCache,
    Resume,
    Tokenize,
    Tokenized,
)
from headrace.core.config import Config, Use, load_config
from headrace.core.errors import ConfigError, EngineClosed, HeadraceError, InvalidParameter, ModelNotFound
from headrace.core.interfaces import SchedulerStats
from headrace.core.messages import RunnerReady
from headrace.core.params import SamplingParams
from headrace.core.prompts import Prompt
from headrace.core.trace import Span
from headrace.frontend import Frontend
from headrace.launch import Inline, Placement, find_model
from headrace.outputs import Result
from headrace.stream import Stream

log = logging.getLogger("headrace")
CLOSED = "the engine was closed"
NOT_STARTED = "the engine was not started: use `async with`, or await start()"


class Engine:
    """Runs a model behind a scheduler, on the caller's event loop.

    model: a folder, a GGUF file, a catalogue name or a hub id; None for runners without a model.
    config: a plugins.toml, see core/config.py for where one is looked for; or what was loaded from one.
    options: options of providers by role, on top of the file's [options].
    placement: where its actors live, such as attached.Attached; None: as engine.processes says.
    overrides: fields of [use] and [engine] by name, such as policy="priority" or max_num_seqs=8. policy, runner and
        tokenizer may also be objects that implement their protocol.

        async with Engine("smollm2-135m-instruct") as engine:
            async for chunk in engine.stream("Tell me", SamplingParams(max_tokens=64)):
                print(chunk.text, end="")
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: str | Path | Config | None = None,
        options: dict[str, dict[str, Any]] | None = None,
        placement: Placement | None = None,
        **overrides: Any,
    ) -> None:
        self._objects = {
            role: overrides.pop(role)
            for role in (field.name for field in fields(Use))
            if not isinstance(overrides.get(role), str | None)
        }
        self.config = _load(config, overrides, options)
        self._model = model
        self._path: Path | None = None
        self._given_placement = placement
        self._frontend = Frontend(0 if placement is None else placement.number, self.config.engine)
        self._placement: Placement | None = None
        self._starting: asyncio.Task[None] | None = None
        self._facts: RunnerReady | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- life ---

    async def start(self) -> Self:
        """Load the model and start the actors; harmless when they run. Raises ConfigError, ModelError, EngineClosed.

        After a failure nothing is left, and it may be called again. Cancelling it stops the start.
        """
        self._frontend.check_open()
        self._loop = asyncio.get_running_loop()
        starting = self._starting = self._starting or asyncio.create_task(self._start(), name="headrace-start")
        try:
            await asyncio.wait([starting])
        except asyncio.CancelledError:
            await self._stop_starting()
            raise
        if starting.cancelled():
            raise EngineClosed("the engine was closed while it started")
        if starting.exception() is not None:
            self._starting = None
        starting.result()
        return self

    async def _start(self) -> None:
        self._path = await asyncio.to_thread(find_model, self._model, self.config.engine.revision)
        self._placement = self._place(self._path)
        try:
            self._facts = await self._placement.start(self._frontend)
        except BaseException:
            placement, self._placement = self._placement, None
            await placement.close()
            raise

    async def _stop_starting(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])

    def _place(self, model: Path | None) -> Placement:
        if self._given_placement is not None:
            return self._given_placement
        if self.config.engine.processes == "inline" or self._objects:  # an object can't leave its process
            return Inline(self.config, model, self._objects)
        from headrace.split import Split

        return Split(self.config, model)

    async def close(self) -> None:
        """End all requests with EngineClosed and release everything; idempotent.

        From any loop: the engine's own does it, if it still runs.
        """
        if self._loop is None or self._loop is asyncio.get_running_loop():
            await self._close()
        elif self._loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), self._loop))
        else:
            self._release()

    async def _close(self) -> None:
        self._frontend.close(CLOSED)
        await self._stop_starting()
        if self._placement is not None:
            await self._placement.close()

    def _release(self) -> None:
        """Release what the end of the engine's loop has left."""
        with contextlib.suppress(RuntimeError):  # nobody can be told on a closed loop
            self._frontend.close(CLOSED)
        if self._placement is not None:
            self._placement.release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def facts(self) -> RunnerReady:
        """What was found while loading. Raises EngineClosed before the start."""
        if self._facts is None:
            raise EngineClosed(NOT_STARTED)
        return self._facts

    async def recommended_params(self) -> SamplingParams:
        """Read what the model's makers recommend; nothing applies it unless a request is given it.

        Raises ModelFileDamaged, and ModelNotFound in an engine that was not started or has no model.
        """
        from headrace.core.model_files.recommended import recommended_params

        if self._path is None:
            raise ModelNotFound("this engine has no model yet, so nothing is recommended for it")
        return await asyncio.to_thread(recommended_params, self._path)

    def pids(self) -> dict[str, int]:
        """Return the engine's own processes by role; none where it runs inline."""
        return {} if self._placement is None else self._placement.pids()

    # --- requests ---

    def stream(
        self, prompt: PromptLike, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Submit a prompt and return the stream of its chunks.

        Raises QueueFull, EngineClosed, InvalidParameter, InvalidPrompt; what only the input process can tell (a prompt
        too long, ids out of the vocabulary) is raised by the stream.
        """
        return self.submit([ask_prompt(prompt, params, **options)])[0]

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Submit a conversation through the model's chat template; otherwise as `stream`."""
        return self.submit([ask_chat(messages, params, **options)])[0]

    async def generate(
        self, prompt: PromptLike, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Result:
        """Return the whole result of a prompt; options as for `stream`. Cancelling it aborts the request."""
        async with self.stream(prompt, params, **options) as stream:
            return await stream.result()

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Result:
        """Return the whole answer to a conversation; options as for `stream`."""
        async with self.stream_chat(messages, params, **options) as stream:
            return await stream.result()

    def submit(self, asks: Sequence[Ask]) -> list[Stream]:
        """Submit several requests at once, all or none: one that is invalid makes all of them fail."""
        if self._facts is None:
            raise EngineClosed(NOT_STARTED)
        return [Stream(self._frontend, request) for request in self._frontend.submit(asks)]

    def num_open(self) -> int:
        """Count unfinished requests of this engine."""
        return self._frontend.num_open()

    # --- control ---

    async def pause(self, mode: Literal["abort", "wait", "keep"] = "wait") -> None:
        """Stop admitting requests: end all ("abort"), let the running ones end ("wait"), or freeze them ("keep")."""
        if mode not in ("abort", "wait", "keep"):
            raise InvalidParameter(f"mode is {mode!r}, must be abort, wait or keep", "mode")
        await self._frontend.call(Pause(mode))

    async def resume(self) -> None:
        """Go on after a pause."""
        await self._frontend.call(Resume())

    async def reset_prefix_cache(self, force: bool = False) -> None:
        """Forget cached blocks. Raises BusyError while requests run, unless forced: then they recompute."""
        if not isinstance(force, bool):
            raise InvalidParameter(f"force is {force!r:.80}, must be True or False", "force")
        await self._frontend.call(ResetPrefixCache(force))

    async def trace(self) -> list[Span]:
        """Return what every process did lately; core.trace.chrome_trace makes a file of it that Perfetto opens."""
        return convert(await self._frontend.call(GetTrace()), list[Span])

    async def stats(self) -> SchedulerStats:
        """Read the scheduler's counters and gauges."""
        return convert(await self._frontend.call(GetStats()), SchedulerStats, from_attributes=True)

    async def ping(self) -> Pong:
        """Send a message round the ring, to see that every part answers and the core gets on with its work."""
        return convert(await self._frontend.call(Ping()), Pong, from_attributes=True)

    async def wait_closed(self) -> HeadraceError:
        """Wait until the engine has ended, closed or failed; returns the error that says why."""
        return await self._frontend.wait_closed()

    # --- text ---

    async def tokenize(self, prompt: Prompt, *, add_special_tokens: bool = True, with_texts: bool = False) -> Tokenized:
        """Return the ids a prompt has, and each token alone as text if asked for. Raises InvalidPrompt."""
        check_prompt(prompt)
        call = Tokenize(prompt, bool(add_special_tokens), bool(with_texts))
        return convert(await self._frontend.call(call), Tokenized, from_attributes=True)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of these ids, special tokens included. Raises InvalidParameter."""
        check_token_ids("tokens", token_ids)
        text: str = await self._frontend.call(Detokenize(tuple(token_ids)))
        return text


def _load(
    config: str | Path | Config | None, overrides: dict[str, Any], options: dict[str, dict[str, Any]] | None
) -> Config:
    if not isinstance(config, Config):
        return load_config(None if config is None else Path(config), overrides, options)
    if overrides or options:
        raise ConfigError(f"config is loaded already, so that {', '.join(overrides) or 'options'} comes too late")
    return config

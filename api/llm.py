"""LLM: the synchronous Python API, for lists of prompts. Its engine runs on a loop of its own thread."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from headrace.ask import Ask, Message, PromptLike, RequestOptions, ask_chat, ask_prompt
from headrace.core.errors import BatchRefused, EngineClosed, InvalidParameter, InvalidPrompt
from headrace.core.interfaces import SchedulerStats
from headrace.core.messages import RunnerReady
from headrace.core.params import SamplingParams
from headrace.core.process import STOP_S
from headrace.engine import Engine
from headrace.frontend import FORKED
from headrace.outputs import Result

T = TypeVar("T")
END_S = STOP_S + 1
"""How long what still runs on the loop has to end when an LLM is closed; processes that stop are waited for."""
Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, or one each."""


class LLM:
    """Runs a model for lists of prompts, offline; also usable where an event loop runs already.

    Takes the arguments of Engine; inline unless processes="split" is asked for. Loads at once: raises ConfigError,
    ModelError.

        with LLM("smollm2-135m-instruct") as llm:
            for result in llm.generate(["One", "Two"], SamplingParams(max_tokens=16)):
                print(result.text)
    """

    def __init__(self, model: str | Path | None = None, **engine: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="headrace-llm", daemon=True)
        self._thread.start()
        self._is_closed = False
        self._pid = os.getpid()
        self._closing = threading.Lock()
        try:
            self._engine = Engine(model, **{"processes": "inline", **engine})
            self._run(self._engine.start())
        except BaseException:
            self._stop_loop()
            raise

    # --- requests ---

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: Params = None,
        *,
        use_tqdm: bool = True,
        **options: Unpack[RequestOptions],
    ) -> list[Result]:
        """Return one result per prompt, in their order. A list of ints is one prompt of token ids.

        Shows a progress bar unless use_tqdm is False. One invalid request fails all of them before any runs.
        Raises RequestError, EngineClosed.
        """
        return self._answer(ask_prompt, _listed(prompts), params, use_tqdm, options)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        use_tqdm: bool = True,
        **options: Unpack[RequestOptions],
    ) -> list[Result]:
        """Return one answer per conversation; a list of messages is one conversation. Otherwise as `generate`."""
        if not isinstance(conversations, Sequence):
            raise InvalidPrompt(f"conversations is a {type(conversations).__name__}, must be a list", "conversations")
        is_one = bool(conversations) and isinstance(conversations[0], dict)
        return self._answer(ask_chat, [conversations] if is_one else list(conversations), params, use_tqdm, options)

    def _answer(
        self, ask: Callable[..., Ask], prompts: list[Any], params: Params, use_tqdm: bool, options: RequestOptions
    ) -> list[Result]:
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise InvalidParameter(
                f"params has {len(each)} entries for {len(prompts)} prompts, give one each", "params"
            )
        asks = [ask(prompt, one, **options) for prompt, one in zip(prompts, each, strict=True)]
        return self._run(self._results(asks, use_tqdm)) if asks else []

    async def _results(self, asks: list[Ask], use_tqdm: bool) -> list[Result]:
        from tqdm import tqdm

        streams = self._engine.submit(asks)
        with tqdm(total=len(streams), desc="Requests", disable=not use_tqdm, dynamic_ncols=True) as bar:

            async def read(index: int) -> Result:
                async with streams[index] as stream:
                    result = await stream.result()
                bar.update()
                return result

            return await _gather([read(index) for index in range(len(streams))])

    # --- control ---

    @property
    def facts(self) -> RunnerReady:
        """What was found while loading."""
        return self._engine.facts

    def recommended_params(self) -> SamplingParams:
        """Read what the model's makers recommend; nothing applies it unless a request is given it.

        Raises ModelFileDamaged, and ModelNotFound without a model.
        """
        return self._run(self._engine.recommended_params())

    def stats(self) -> SchedulerStats:
        """Read the scheduler's counters and gauges."""
        return self._run(self._engine.stats())

    def reset_prefix_cache(self, force: bool = False) -> None:
        """Forget cached blocks. Raises BusyError while requests run, unless forced."""
        self._run(self._engine.reset_prefix_cache(force))

    def close(self) -> None:
        """Release everything; idempotent, from any thread. What other threads wait for ends with EngineClosed."""
        if self._pid != os.getpid():
            return  # a fork has neither its thread nor its processes
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._submit(self._engine.close()).result()
                self._stop_loop()

    def __del__(self) -> None:
        """Have everything released that was not closed; waits for nothing, since destructors run at any point."""
        if not self._is_closed and self._pid == os.getpid() and self._loop.is_running():
            self._loop.call_soon_threadsafe(_start_closing, self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            work.close()
            raise EngineClosed(FORKED)
        with self._closing:
            if self._is_closed:
                work.close()
                raise EngineClosed("the LLM was closed")
            future = self._submit(work)
        try:
            return future.result()
        except CancelledError:
            raise EngineClosed("the LLM was closed") from None
        except BaseException:
            future.cancel()
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop_loop(self) -> None:
        """Let what is left on the loop end, then stop it."""
        self._is_closed = True
        self._submit(_end_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _start_closing(engine: Engine) -> None:
    """Close an engine on its loop, and stop the loop."""

    async def close() -> None:
        await engine.close()
        await _end_others()

    loop = asyncio.get_running_loop()
    loop.create_task(close(), name="headrace-close").add_done_callback(lambda _done: loop.stop())


async def _end_others() -> None:
    """Wait for all other tasks of this loop, cancelled at a deadline."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, late = await asyncio.wait(others, timeout=END_S)
        for task in late:
            task.cancel()
        await asyncio.wait(others)


async def _gather(work: list[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Wait for all; an error cancels the others, and that of the request at fault is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        errors = [error for task in tasks if task.done() and (error := task.exception())]
        if errors:
            raise next((error for error in errors if not isinstance(error, BatchRefused)), errors[0])
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()


def _listed(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InvalidPrompt(f"prompts is a {type(prompts).__name__}, must be a prompt or a list of prompts", "prompts")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]  # a list of ints is one prompt
    return list(prompts)  # type: ignore[arg-type]

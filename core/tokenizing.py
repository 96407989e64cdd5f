"""Tokenizing off the loop: long prompts go to threads, so that the input process always answers.

Each frontend's submissions stay in order; aborts and calls overtake them. Short prompts are done at once, which costs
less than the way to a thread and back.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from headrace.core.calls import Call, Detokenize, Tokenize
from headrace.core.input import InputActor, children_of
from headrace.core.messages import Abort, Ended, FrontendGone, RequestId, StepOutput, Submit, SubmitAll, ToCore, ToInput
from headrace.core.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt

SHORT = 4096
"""Characters or ids that are tokenized on the loop: about a millisecond."""
NUM_THREADS = 2

Submission = Submit | SubmitAll


class TokenizingPool:
    """Feeds an InputActor. Owner of the submissions that wait for a thread."""

    def __init__(self, actor: InputActor) -> None:
        self._actor = actor
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
        self._pending: dict[int, deque[Submission]] = {}
        """By frontend; the first one is on a thread."""
        self._aborted: set[tuple[int, int]] = set()
        """Frontend and counter of pending requests that were aborted."""
        self._gone: set[int] = set()
        """Frontends that have died: what they sent before may come later than the news."""

    def handle(self, messages: Iterable[ToInput]) -> None:
        """Work through messages on the loop; never waits."""
        for message in messages:
            match message:
                case Submit() | SubmitAll():
                    self._submit(message)
                case Call(frontend=frontend) if frontend in self._gone:
                    pass
                case Call(what=Tokenize() | Detokenize()):
                    self._start(self._actor.answer, message)
                case Abort(requests=requests):
                    self._abort(requests)
                case FrontendGone(frontend=frontend):
                    self._gone.add(frontend)
                    self._aborted.update((frontend, counter) for counter in self._pending_counters(frontend))
                    self._actor.send((message,))
                case Call():
                    self._actor.send((self._actor.passed_on(message),))

    def _submit(self, message: Submission) -> None:
        frontend = _submits(message)[0].request.frontend
        if frontend in self._gone:
            return
        if frontend in self._pending:
            self._pending[frontend].append(message)
        elif _is_short(message):
            self._actor.send(self._actor.admit(message))
        else:
            self._pending[frontend] = deque([message])
            self._tokenize(frontend, message)

    def _abort(self, requests: Sequence[RequestId]) -> None:
        pending = {frontend: self._pending_counters(frontend) for frontend in {r.frontend for r in requests}}
        waiting = {r for r in requests if r.counter in pending[r.frontend]}
        self._aborted.update((request.frontend, request.counter) for request in waiting)
        if admitted := tuple(request for request in requests if request not in waiting):
            self._actor.send((Abort(admitted),))

    def _pending_counters(self, frontend: int) -> set[int]:
        return {submit.request.counter for m in self._pending.get(frontend, ()) for submit in _submits(m)}

    # --- on threads ---

    def _tokenize(self, frontend: int, message: Submission) -> None:
        self._start(self._actor.admit, message).add_done_callback(partial(self._next, frontend))

    def _start(self, work: Callable[[Any], list[ToCore]], message: ToInput) -> "asyncio.Future[list[ToCore]]":
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, message)
        future.add_done_callback(lambda done: self._actor.send(done.result()))
        return future

    def _next(self, frontend: int, _done: object) -> None:
        """Go on after a frontend's first pending submission came back from its thread and was sent."""
        pending = self._pending[frontend]
        self._pass_aborts(pending.popleft())
        while pending:
            message = pending[0]
            if isinstance(message, Submit) and self._take_abort(message):
                self._actor.send((StepOutput(ended=tuple(Ended(request, "abort") for request in _ids(message))),))
            elif _is_short(message):
                self._actor.send(self._actor.admit(message))
                self._pass_aborts(message)
            else:
                self._tokenize(frontend, message)
                return
            pending.popleft()
        del self._pending[frontend]

    def _pass_aborts(self, message: Submission) -> None:
        """Send the aborts that came for these requests while they were pending behind them."""
        for submit in _submits(message):
            if self._take_abort(submit):
                self._actor.send((Abort(tuple(_ids(submit))),))

    def _take_abort(self, submit: Submit) -> bool:
        key = (submit.request.frontend, submit.request.counter)
        is_aborted = key in self._aborted
        self._aborted.discard(key)
        return is_aborted


def _submits(message: Submission) -> Sequence[Submit]:
    return message.submits if isinstance(message, SubmitAll) else (message,)


def _ids(submit: Submit) -> Iterable[RequestId]:
    frontend, counter, _ = submit.request
    return (RequestId(frontend, counter, child.choice) for child in children_of(submit))


def _is_short(message: Submission) -> bool:
    return sum(_length(submit.prompt) + _num_bad(submit) for submit in _submits(message)) <= SHORT


def _num_bad(submit: Submit) -> int:
    return sum(map(len, submit.params.bad_words or ()))


def _length(prompt: Prompt) -> int:
    match prompt:
        case TextPrompt(text=text):
            return len(text)
        case TokenPrompt(token_ids=token_ids):
            return len(token_ids)
        case ChatPrompt(messages=messages):
            return sum(len(str(message.get("content"))) for message in messages)

"""The protocols of an engine's parts, each with the values that its calls carry. No implementation.

Not here: what works on a runner's rows beside its model (extensions.py), and what all are built from (providers.py).
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.messages import Admit, FinishReason, RequestId, RunnerReady, RunStep, StepDone, StepOutput

# --- runner -----------------------------------------------------------------------------------------------------------


class StepHandle(Protocol):
    """A step in flight."""

    def done(self) -> bool:
        """Tell whether result() returns at once."""

    def result(self) -> StepDone:
        """Return what the step gave; never raises, a failure is StepDone.error."""


class Runner(Protocol):
    """Computes steps in the order of their submission, on a thread, process or device of its own."""

    def load(self) -> RunnerReady:
        """Load the model and set up KV storage. Blocks; called once, off the loop. Raises ModelError, ConfigError."""

    def submit(self, step: RunStep, wake: Callable[[], None]) -> StepHandle:
        """Queue a step and return at once; `wake` is called from any thread when it is done."""

    def close(self) -> None:
        """Release everything; idempotent. Steps in flight are abandoned."""


class Batch(Struct, frozen=True):
    """One step on a flat token list, prefill and decode mixed; T tokens of R rows, row by row. All contiguous."""

    rows: Ints
    """(R,) row of the persistent batch."""
    token_ids: Ints
    """(T,)"""
    positions: Ints
    """(T,) position of each token in its own sequence."""
    starts: Ints
    """(R + 1,) where each row's tokens begin in the flat list."""
    context_lens: Ints
    """(R,) tokens in the row's KV after this step: position of its last token + 1."""
    slots: Sequence[np.ndarray]
    """One (T,) int64 array per KV group: block id * block_size + offset, where each token's K/V go."""
    tables: Sequence[np.ndarray]
    """One (R, max_blocks) int32 array per KV group: block tables of the step's rows."""
    samples: Ints
    """(S,) index into the R rows of those that sample."""
    logit_places: Ints
    """(L,) where in the flat token list their logits are: of each, its last known token and its drafts."""
    num_drafts: Ints | None = None
    """(R,) how many tokens at the end of each row are drafts; None: no row has any."""


class StepModel(Protocol):
    """What runs a batch: the model behind the runners that share worker.py."""

    def load(self) -> RunnerReady:
        """Load weights and set up KV storage."""

    def forward(self, batch: Batch) -> None:
        """Write K/V of all tokens, then compute their hidden states; kept until the next call."""

    def logits(self, indices: Ints) -> Floats:
        """Return (len(indices), vocab_size) float32 logits at these places of the flat token list of the last forward.

        The array is the caller's until the next forward: it may be changed in place; the model may use it again then.
        """

    def close(self) -> None:
        """Release everything; idempotent."""


# --- KV manager -------------------------------------------------------------------------------------------------------


class BlockKeys:
    """One request's chain of block hashes. Owner: the request; the KV manager extends it when it registers blocks."""

    __slots__ = ("digests", "root")

    def __init__(self, root: bytes, digests: Sequence[bytes] = ()) -> None:
        self.root = root
        self.digests = list(digests)
        """One per full block, from the first on; may be shorter than the sequence."""


class KVStats(Struct, frozen=True):
    """Counters of one KV manager since it was built."""

    num_blocks: int
    num_free: int
    """Blocks no request refers to, cached or not."""
    queries: int = 0
    """Prompt tokens looked up, counted once per first admission; 0 when caching is off."""
    hits: int = 0
    """Of those, tokens found."""
    resume_hits: int = 0
    """Tokens found when preempted requests came back, counted apart."""


class KVManager(Protocol):
    """Owns blocks, block tables and the prefix index. Called by the scheduler only; no call waits."""

    block_size: int

    def max_tokens(self) -> int:
        """Most tokens that one request alone can hold."""

    def match(self, keys: BlockKeys, num_tokens: int) -> int:
        """Count tokens of a sequence of `num_tokens` that the cache holds: whole blocks, never all of it. No change."""

    def admit(self, row: int, keys: BlockKeys, num_tokens: int, read_cache: bool, resumed: bool) -> int | None:
        """Bind blocks for `num_tokens` tokens to a free row, cached ones first.

        Returns the number of cached tokens (what `match` said), or None if blocks are lacking: then nothing changed.
        Where layers see a window, it may bind blocks for the first chunk only: see `grow`.
        """

    def grow(self, row: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all, whole blocks. False: blocks are lacking, nothing changed.

        Called before each step of a row, but not for its first chunk, nor where one token alone is computed that the
        blocks asked for so far have room for.
        """

    def commit(self, row: int, num_tokens: int) -> None:
        """Register the row's full, hashed blocks among its first `num_tokens` tokens: their steps are scheduled."""

    def release(self, row: int, token_ids: Ints) -> None:
        """Give the row's blocks back, tail first; full blocks of `token_ids`, whose K/V are sound, get registered."""

    def withdraw(self, row: int) -> list[int]:
        """Unregister what this row registered; returns other rows that hit those blocks and must recompute.

        The row stays bound; its next release registers nothing. A released row can be withdrawn until it is admitted
        again: its failure may become known late.
        """

    def take_changes(self) -> bytes:
        """Return and forget block table changes since the last call: int32 (n, 4) of group, row, index, block id."""

    def reset(self) -> None:
        """Forget every cached block. Blocks in use stay in use, but are registered no more."""

    def stats(self) -> KVStats:
        """Read the counters."""

    def check_invariants(self) -> None:
        """Raise AssertionError if blocks are lost, doubled or miscounted. For tests."""


@runtime_checkable
class AddsBlocks(Protocol):
    """What a KV manager may offer besides: fast schedulers then ask once a step, instead of once per full row."""

    def add_blocks(self, rows: NDArray[np.intp]) -> bool:
        """Do what grow() does for each of these rows, in their order, by one block. False: too few, nothing changed."""


PromptHasher = Callable[[str | None, Ints], BlockKeys]
"""hash_prompt(cache_salt, token_ids): what a KV manager's plugin gives the input process, where prompts are hashed."""


# --- policy -----------------------------------------------------------------------------------------------------------


class PolicyArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request may say to its policy; a policy's own Struct derives from this."""

    tenant: str | None = None


class RequestFacts(Protocol):
    """What a policy sees of a request. All but num_generated never change."""

    @property
    def id(self) -> RequestId:
        """The request."""

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""

    @property
    def cached_len(self) -> int:
        """Prompt tokens in the prefix cache when it was submitted."""

    @property
    def max_tokens(self) -> int:
        """Tokens it may generate."""

    @property
    def priority(self) -> int:
        """Lower is more urgent."""

    @property
    def arrival(self) -> float:
        """Seconds, when the frontend took it."""

    @property
    def order(self) -> int:
        """Counts submissions: a tie-break that never repeats."""

    @property
    def tenant(self) -> str | None:
        """policy_args.tenant."""

    @property
    def args(self) -> PolicyArgs:
        """The request's validated policy_args."""

    @property
    def num_generated(self) -> int:
        """Tokens generated so far, read now."""


class Policy(Protocol):
    """Owns the waiting order. Built by a provider of role `policy`; schedulers/policies/base.py has the usual base."""

    Args: type[PolicyArgs]

    def add(self, request: RequestFacts) -> None:
        """Queue a request: a new one, or a preempted one that comes back."""

    def remove(self, request: RequestFacts) -> None:
        """Take a request out of the queue: it was admitted, or ended while waiting."""

    def candidates(self, now: float) -> Generator[RequestFacts]:
        """Yield waiting requests, the next to run first. While it is read, each may be removed once it is yielded."""

    def victim(self, running: Sequence[RequestFacts], for_request: RequestFacts) -> int:
        """Choose whom to preempt when `for_request` (one of `running`) lacks blocks: an index into `running`."""

    def on_finish(self, request: RequestFacts, reason: FinishReason) -> None:
        """Observe that a request ended."""


# --- scheduler --------------------------------------------------------------------------------------------------------


class DraftStats(Struct, frozen=True):
    """Counters of draft tokens."""

    num_drafts: int = 0
    """Times a row had drafts."""
    num_draft_tokens: int = 0
    num_accepted_per_pos: tuple[int, ...] = ()
    """Accepted drafts by their place behind the known tokens."""

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that turned out right."""
        return sum(self.num_accepted_per_pos)


class SchedulerStats(Struct, frozen=True):
    """Counters and gauges of a scheduler."""

    num_waiting: int
    num_running: int
    preemptions: int
    """Times a running request lost its row."""
    finished: dict[str, int]
    """Ended requests by reason."""
    prompt_tokens: int
    """Of ended requests, each counted once."""
    generation_tokens: int
    """Of ended requests."""
    steps: int
    kv: KVStats
    drafts: DraftStats = DraftStats()


class Scheduler(Protocol):
    """Decides what each step computes. A state machine: no asyncio, no torch; time comes from its context's clock."""

    def add(self, request: Admit) -> None:
        """Queue a request. Raises RequestError: it can never fit, or its policy_args are wrong."""

    def abort(self, requests: Sequence[RequestId]) -> StepOutput | None:
        """End these requests now; unknown ones are ignored. Returns what to publish."""

    def stop(self, request: RequestId, num_tokens: int) -> None:
        """End a request that hit a stop string; nothing is published, its end is known already."""

    def schedule(self) -> RunStep | None:
        """Decide the next step; None if nothing can run now."""

    def update(self, done: StepDone) -> StepOutput | None:
        """Take in a step's result, in the order of the steps. Returns what to publish."""

    def pause(self, *, admissions: bool, steps: bool) -> None:
        """Set what is off: admitting waiting requests, or all steps. Both False: everything on."""

    def reset_prefix_cache(self, force: bool) -> None:
        """Forget cached blocks; no step is in flight. Raises BusyError if blocks are in use and `force` is False."""

    def unfinished(self) -> list[RequestId]:
        """List all requests that have not ended."""

    def num_running(self) -> int:
        """Count requests that hold a row."""

    def stats(self) -> SchedulerStats:
        """Read the counters."""

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself. For tests."""


# --- text -------------------------------------------------------------------------------------------------------------


class Tokenizer(Protocol):
    """Text to ids and back, in the input and output processes."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids; special tokens written out in the text become their ids."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of these ids; bytes that are no character become U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """Return one token alone as text."""

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Apply the chat template, ready for the assistant's answer. Raises InvalidPrompt."""

    def detokenizer(self, prompt_tail: Sequence[int], skip_special_tokens: bool) -> "Detokenizer":
        """Start an incremental decoder for one request."""


class Detokenizer(Protocol):
    """Incremental decoder of one request. Owner: OutputActor."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids; return the text that is certain now, never half a character."""

    def flush(self) -> str:
        """Return what is left at the end; an unfinished character becomes U+FFFD."""

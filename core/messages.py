"""The messages of requests and steps, between actors and processes: values, no callbacks, tensors, futures or locks.

frontend -> input -> core -> output -> frontend is the way of a request; core <-> runner is the way of a step. Columns
are raw little-endian int32 or float32 bytes (see columns.py); all times are seconds of time.monotonic(), the same in
every process of a machine. Calls go the way of a request: see calls.py.
"""

from typing import Any, Literal, NamedTuple

from msgspec import Struct

from headrace.core.calls import Call, Reply
from headrace.core.errors import ErrorInfo
from headrace.core.params import SamplingParams
from headrace.core.prompts import Prompt

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestId(NamedTuple):
    """A request inside the engine; the user's own name for it never leaves the frontend."""

    frontend: int
    counter: int
    choice: int
    """Which of the n completions of one prompt."""


# --- frontend -> input ------------------------------------------------------------------------------------------------


class Regained(Struct, frozen=True, array_like=True):
    """Part of Submit: one unfinished completion, and what came of it before a restart."""

    choice: int
    token_ids: bytes
    """int32."""


class Submit(Struct, frozen=True, tag=True):
    """frontend -> input: run this request; `choice` of its id is 0, and input makes the n children."""

    request: RequestId
    prompt: Prompt
    params: SamplingParams
    """Its seed is filled in."""
    priority: int = 0
    """Lower runs first, where the policy looks at it."""
    arrival: float = 0.0
    """When the frontend took it."""
    cache_salt: str | None = None
    """Separates prefix cache entries completely."""
    policy_args: dict[str, Any] = {}
    """Validated in the core against the policy's own Struct."""
    regained: tuple[Regained, ...] | None = None
    """After a restart, the completions to go on with; None: all n, from their start."""


class SubmitAll(Struct, frozen=True, tag=True):
    """frontend -> input: run all of these, or none if one of them is invalid."""

    submits: tuple[Submit, ...]


class Abort(Struct, frozen=True, tag=True):
    """frontend -> input -> core: end these requests; may come twice or too late."""

    requests: tuple[RequestId, ...]


class FrontendGone(Struct, frozen=True, tag=True):
    """launcher -> input -> core -> output: this frontend has died; nobody waits for its requests."""

    frontend: int


# --- input -> core ----------------------------------------------------------------------------------------------------


class RowSampling(Struct, frozen=True, array_like=True):
    """What a runner needs to sample one row, all ids checked against the vocabulary."""

    temperature: float
    top_k: int
    """0 keeps all."""
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token id sequences whose last token is masked when those before it were just generated."""
    min_tokens: int = 0
    """Ids of `stop_ids` are masked until so many tokens were generated."""
    stop_ids: tuple[int, ...] = ()
    """End-of-sequence and stop ids, for min_tokens only; the scheduler stops requests."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logits_processors: dict[str, dict[str, Any]] = {}
    """Arguments by name, in the order of application."""


class Admit(Struct, frozen=True, tag=True):
    """input -> core: a checked, tokenized request."""

    request: RequestId
    token_ids: bytes
    """int32; ids beyond num_prompt are output the request already had before a restart."""
    num_prompt: int
    max_tokens: int
    """Tokens to generate at most, regained ones included; num_prompt + max_tokens fits the context."""
    min_tokens: int
    stop_ids: tuple[int, ...]
    """Ids that end the request once min_tokens were generated; already without EOS if the user ignores it."""
    sampling: RowSampling
    eos_ids: tuple[int, ...] = ()
    """Those of stop_ids that are the model's own: they end with stop_reason None."""
    priority: int = 0
    arrival: float = 0.0
    policy_args: dict[str, Any] = {}
    block_root: bytes = b""
    """Start of this request's chain of block hashes (salt, adapter); empty when the KV manager has no hasher."""
    block_hashes: tuple[bytes, ...] = ()
    """One digest per full block of the prompt."""
    read_cache: bool = True
    """False where prompt logprobs need every position computed."""
    text: bytes = b""
    """What only the output process reads (see TextPart); the core forwards it undecoded."""


class Refused(Struct, frozen=True, tag=True):
    """input or core -> output -> frontend: the request never ran; this is its only answer."""

    request: RequestId
    error: ErrorInfo


class TextPart(Struct, frozen=True, array_like=True):
    """input -> output, opaque to the core: how a request's tokens become text."""

    prompt_tail: tuple[int, ...]
    """The prompt's last ids, as context for decoders that need it."""
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    min_tokens: int
    """Stop strings are looked for only after so many tokens."""
    regained: bytes = b""
    """int32, tokens whose text the frontend has already: after a restart the text goes on behind them."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None


# --- core <-> runner --------------------------------------------------------------------------------------------------


class BindRow(Struct, frozen=True, array_like=True):
    """Part of RunStep: a row of the persistent batch gets a new request, all earlier state of the row is void."""

    row: int
    token_ids: bytes
    """int32: prompt, and what was generated before a preemption or restart."""
    num_prompt: int
    num_computed: int
    """Tokens at the start whose K/V are cached already."""
    sampling: RowSampling


class RunStep(Struct, frozen=True, tag=True):
    """core -> runner: compute so many more tokens of each of these rows.

    Steps run in order. A row's start position is the runner's own count (num_computed of its BindRow plus what later
    steps computed). A row whose end reaches all ids it has samples its next token and appends it, so that the next step
    can take one more; no token travels through the core before it is used.
    """

    step: int
    """Counts from 1, never reused in an epoch."""
    rows: bytes
    """int32 (num_rows,): each row at most once."""
    num_tokens: bytes
    """int32 (num_rows,): tokens to compute, at least 1. What a decoding row is asked beyond those it has is room for
    drafts, which the runner's proposer may fill."""
    bound: tuple[BindRow, ...] = ()
    """Applied before the step's rows are read."""
    tables: bytes = b""
    """int32 (num_changes, 4): group, row, index, block id; applied in order."""
    reset: bool = False
    """Forget all rows first: a failed step made the runner's state void."""


class Logprobs(Struct, frozen=True, array_like=True):
    """Columns of log probabilities (natural, before any adjustment), one entry per reported position."""

    rows: bytes
    """int32 (num_entries,): row of the batch."""
    positions: bytes
    """int32 (num_entries,): position of the reported token in its sequence."""
    ranks: bytes
    """int32 (num_entries,): 1 + number of tokens likelier than the reported one."""
    widths: bytes
    """int32 (num_entries,): 1 + alternatives; the reported token comes first, then the likeliest, best first."""
    token_ids: bytes
    """int32 (sum of widths,)."""
    logprobs: bytes
    """float32 (sum of widths,)."""


class RowFailure(Struct, frozen=True, array_like=True):
    """Part of StepDone: this row's request failed; the others of the step are sound."""

    row: int
    error: ErrorInfo


class StepDone(Struct, frozen=True, tag=True):
    """runner -> core: what a RunStep gave."""

    step: int
    num_new: bytes = b""
    """int32 (num_rows,): sampled tokens per row, in the step's row order; 0 for a row that only prefilled or failed.
    A row with drafts gives one more than it accepts of them."""
    token_ids: bytes = b""
    """int32 (sum of num_new,)."""
    num_drafted: bytes = b""
    """int32 (num_rows,): draft tokens that were proposed and verified; empty where no row had any."""
    failed: tuple[RowFailure, ...] = ()
    logprobs: Logprobs | None = None
    """For sampled tokens of rows that asked."""
    prompt_logprobs: Logprobs | None = None
    """For this step's chunk of prompts that asked: the token at a position, given those before it."""
    error: ErrorInfo | None = None
    """The step failed as a whole; everything else is empty."""
    started: float = 0.0
    ended: float = 0.0


class KVGroup(Struct, frozen=True, array_like=True):
    """Part of RunnerReady: layers that share one block table."""

    num_layers: int
    num_blocks: int
    """Usable blocks, the null block 0 not counted: ids are 1 to num_blocks."""
    window: int | None = None
    """Sliding window in tokens; None is full attention."""


class RunnerReady(Struct, frozen=True, tag=True):
    """runner -> core and input, once: facts found while loading."""

    vocab_size: int
    max_model_len: int
    """The smaller of what the config asks and what the model can."""
    groups: tuple[KVGroup, ...]
    """At least one."""
    bytes_per_block: int
    """K and V of one block over all layers."""
    dtype: str = "float32"
    step_ms: float | None = None
    """Longest step with prompt chunks that suits the device, unless engine.step_ms says otherwise; None: any."""
    timings: dict[str, float] = {}
    """Seconds by stage of loading, such as import, read, dequantise."""


# --- core -> output ---------------------------------------------------------------------------------------------------


class Bound(Struct, frozen=True, array_like=True):
    """Part of StepOutput: from here on this row's tokens are this request's."""

    row: int
    request: RequestId
    num_prompt: int
    num_cached: int
    """Prompt tokens found in the prefix cache at the first admission."""
    scheduled: float
    """When it was first admitted."""
    text: bytes = b""
    """TextPart, encoded; empty when the request comes back after a preemption."""


class Ended(Struct, frozen=True, array_like=True):
    """Part of StepOutput: no more tokens of this request; applied after the tokens of the same message."""

    request: RequestId
    reason: FinishReason
    stop_reason: int | None = None
    """The stop id that ended it; None for EOS and everything else."""
    error: ErrorInfo | None = None
    num_prompt: int = 0
    num_cached: int = 0


class StepOutput(Struct, frozen=True, tag=True):
    """core -> output: the new tokens of a step, and who ended. From input: who ended before the core saw it."""

    bound: tuple[Bound, ...] = ()
    """Applied before the tokens."""
    rows: bytes = b""
    """int32 (num_rows,): rows with new tokens, each once."""
    num_new: bytes = b""
    """int32 (num_rows,), at least 1 each."""
    token_ids: bytes = b""
    """int32 (sum of num_new,)."""
    logprobs: Logprobs | None = None
    """May hold entries of rows that aren't in `rows` any more; they are ignored."""
    prompt_logprobs: Logprobs | None = None
    """May repeat positions after a preemption."""
    ended: tuple[Ended, ...] = ()


class StopHit(Struct, frozen=True, tag=True):
    """output -> core: a stop string ended this request, the only message against the ring."""

    request: RequestId
    num_tokens: int
    """Generated tokens that count; later ones are dropped."""


# --- output -> frontend -----------------------------------------------------------------------------------------------


class TokenLogprob(Struct, frozen=True, array_like=True):
    """One candidate at one position."""

    token_id: int
    logprob: float
    rank: int
    text: str
    """The token alone, as text; bytes that are no character become U+FFFD."""


PositionLogprobs = tuple[TokenLogprob, ...]
"""The reported token first, then the likeliest ones, best first (the reported one may be among them)."""


class Delta(Struct, frozen=True, tag=True):
    """output -> frontend: more of a request's text."""

    request: RequestId
    text: str
    token_ids: bytes = b""
    """int32."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    """One per token of token_ids."""
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """With the request's first delta: one per prompt token, None for the first."""


class Usage(Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    """EOS and stop ids included."""
    cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""


class Finished(Struct, frozen=True, tag=True):
    """output -> frontend: the last message of a request that ran, exactly one."""

    last: Delta
    """What was still held back; may be empty."""
    reason: FinishReason
    usage: Usage
    stop_reason: int | str | None = None
    error: ErrorInfo | None = None
    scheduled: float | None = None
    """When it was first admitted; None if it never was."""


ToInput = Submit | SubmitAll | Abort | Call | FrontendGone
ToCore = Admit | Abort | Call | FrontendGone | StopHit | StepOutput | Refused | Reply
ToOutput = StepOutput | Refused | Reply | FrontendGone
ToFrontend = Delta | Finished | Refused | Reply

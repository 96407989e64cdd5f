"""Calls, what a frontend asks of an engine beside requests, and their answers: messages as in messages.py."""

from typing import Any, Literal

from msgspec import Struct

from headrace.core.errors import ErrorInfo
from headrace.core.prompts import Prompt
from headrace.core.trace import Span


class ResetPrefixCache(Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached blocks. Refused while blocks are in use, unless forced: then all running requests recompute."""

    force: bool = False


class Pause(Struct, frozen=True, tag="pause"):
    """Stop admitting requests. abort: end all; wait: let the running ones end; keep: freeze them where they are."""

    mode: Literal["abort", "wait", "keep"] = "wait"


class Resume(Struct, frozen=True, tag="resume"):
    """Undo a Pause."""


class GetStats(Struct, frozen=True, tag="stats"):
    """Read the engine's counters and gauges."""


class Tokenize(Struct, frozen=True, tag="tokenize"):
    """Tell the ids of a prompt, as a request with it would have them; the input actor answers with Tokenized."""

    prompt: Prompt
    add_special_tokens: bool = True
    """Of a text prompt, such as a begin-of-sequence id."""
    with_texts: bool = False


class Detokenize(Struct, frozen=True, tag="detokenize"):
    """Tell the text of these ids, special tokens included; the input actor answers with a string."""

    token_ids: tuple[int, ...]


class Ping(Struct, frozen=True, tag="ping"):
    """Tell whether the engine gets on with its work; the core answers with Pong."""


class GetTrace(Struct, frozen=True, tag="trace"):
    """Collect what each process did lately: input, core and output add theirs as the call goes round."""

    spans: tuple[Span, ...] = ()


class Call(Struct, frozen=True, tag=True):
    """frontend -> input -> core: a question or command that gets exactly one Reply."""

    frontend: int
    call: int
    what: ResetPrefixCache | Pause | Resume | GetStats | GetTrace | Tokenize | Detokenize | Ping


class Reply(Struct, frozen=True, tag=True):
    """input or core -> output -> frontend: the answer to a Call."""

    frontend: int
    call: int
    value: Any = None
    error: ErrorInfo | None = None
    is_trace: bool = False
    """The output process adds its own spans to the value."""


class Tokenized(Struct, frozen=True):
    """Part of Reply: the answer to Tokenize."""

    token_ids: list[int]
    texts: list[str] | None = None
    """Each token alone as text, where asked for."""


class Pong(Struct, frozen=True):
    """Part of Reply: the answer to Ping."""

    ready_age_s: float
    """Since the core last got on with anything, while it has requests that may run; 0 where it has none."""
    step_age_s: float
    """Since the oldest step in flight was submitted; 0 where there is none."""

"""Sampling parameters as users type them. Names and meaning are vLLM's where it has them."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.errors import InvalidParameter

MAX_LOGPROBS = 20
MAX_N = 1024
MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
MAX_LISTED_IDS = 65536
MAX_BAD_WORDS = 1024
MAX_PROCESSORS = 16
MAX_COPIED = 2**20
"""Ids and characters of all lists and arguments, times n: each completion gets its own copy of them."""
MAX_SEED = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request is sampled and when it stops. Raises InvalidParameter on a value out of its limits.

    What needs a vocabulary (ids in range) is checked at submission.
    """

    n: int = 1
    """Completions of one prompt, each with a seed derived from the request's."""
    temperature: float = 1.0
    """0 is greedy: the highest logit, the lowest id among equals."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities reach this; in (0, 1]."""
    top_k: int = 0
    """Keep so many of the likeliest tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest one; in [0, 1]."""
    seed: int | None = None
    """Same seed, prompt and parameters: same tokens. None draws one at submission."""
    stop: str | Sequence[str] | None = None
    """Strings that end the text; stored as a tuple."""
    stop_token_ids: Sequence[int] | None = None
    """Ids that end the request, beside the model's own end-of-sequence ids; stored as a tuple."""
    min_tokens: int = 0
    """No end-of-sequence or stop id is sampled before so many tokens."""
    max_tokens: int | None = 16
    """Most tokens to generate; None: as many as the context and the KV pool hold."""
    ignore_eos: bool = False
    """Go on after the model's end-of-sequence ids; stop_token_ids still stop."""
    logprobs: int | None = None
    """Report each token's log probability and so many likeliest alternatives (0 to 20), before any adjustment."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens; the prefix cache isn't read then."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token generated so far; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """The same times how often it was generated; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; above 0."""
    logit_bias: dict[int, float] | None = None
    """Added to these ids' logits; each in [-100, 100]."""
    allowed_token_ids: Sequence[int] | None = None
    """Sample only these ids; stored as a tuple."""
    bad_words: Sequence[str] | None = None
    """Phrases that are never completed; stored as a tuple."""
    logits_processors: dict[str, dict[str, Any]] | None = None
    """Plugins that change the logits, by name in the order of application, each with its arguments."""
    include_stop_str_in_output: bool = False
    """Leave the stop string at the end of the text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        """Check every field, and store sequences as tuples."""
        _check_types(self)
        store = msgspec.structs.force_setattr
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        store(self, "stop", _strings("stop", stop, MAX_STOPS))
        store(self, "bad_words", _strings("bad_words", self.bad_words, MAX_BAD_WORDS))
        store(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        store(self, "allowed_token_ids", _allowed(self.allowed_token_ids))
        _check_whole_numbers(self)
        _check_numbers(self)
        _check_copies(self, _size_of_processors(self.logits_processors))


def _fail(field: str, value: object, limit: str) -> InvalidParameter:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InvalidParameter(f"{field} is {shown}, must be {limit}", field)


_WHOLE = ("n", "top_k", "min_tokens")
_WHOLE_OR_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_types(params: SamplingParams) -> None:
    for field in _WHOLE + _WHOLE_OR_NONE:
        value = getattr(params, field)
        if not _is_whole(value) and not (value is None and field in _WHOLE_OR_NONE):
            raise _fail(field, value, "a whole number")
    for field in _NUMBERS:
        value = getattr(params, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _fail(field, value, "a finite number")
    for field in _FLAGS:
        if not isinstance(getattr(params, field), bool):
            raise _fail(field, getattr(params, field), "true or false")


def _check_whole_numbers(params: SamplingParams) -> None:
    limits: list[tuple[str, int | None, int, int]] = [
        ("n", params.n, 1, MAX_N),
        ("top_k", params.top_k, -1, 2**31 - 1),
        ("min_tokens", params.min_tokens, 0, 2**31 - 1),
        ("max_tokens", params.max_tokens, 1, 2**31 - 1),
        ("seed", params.seed, -MAX_SEED, MAX_SEED),
        ("logprobs", params.logprobs, 0, MAX_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs, 0, MAX_LOGPROBS),
    ]
    for field, value, low, high in limits:
        if value is not None and not low <= value <= high:
            raise _fail(field, value, f"{low} to {high}")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _fail("min_tokens", params.min_tokens, f"at most max_tokens, which is {params.max_tokens}")


def _check_numbers(params: SamplingParams) -> None:
    if params.temperature < 0 or params.temperature > 100:
        raise _fail("temperature", params.temperature, "0 to 100")
    if not 0 < params.top_p <= 1:
        raise _fail("top_p", params.top_p, "above 0 and at most 1")
    if not 0 <= params.min_p <= 1:
        raise _fail("min_p", params.min_p, "0 to 1")
    for field in ("presence_penalty", "frequency_penalty"):
        if not -2 <= getattr(params, field) <= 2:
            raise _fail(field, getattr(params, field), "-2 to 2")
    if not 0 < params.repetition_penalty <= 100:
        raise _fail("repetition_penalty", params.repetition_penalty, "above 0 and at most 100")
    _check_logit_bias(params.logit_bias)


def _check_logit_bias(bias: object) -> None:
    if bias is None:
        return
    if not isinstance(bias, dict) or len(bias) > MAX_LISTED_IDS:
        raise _fail("logit_bias", bias, f"a dict of at most {MAX_LISTED_IDS} token ids")
    for token_id, value in bias.items():
        if not _is_whole(token_id) or token_id < 0:
            raise _fail("logit_bias", token_id, "keyed by token ids")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise _fail(f"logit_bias[{token_id}]", value, "-100 to 100")


def _size_of_processors(processors: object) -> int:
    """Count the characters of names and arguments, which must be plain values."""
    if processors is None:
        return 0
    if not isinstance(processors, dict) or len(processors) > MAX_PROCESSORS:
        raise _fail("logits_processors", processors, f"a dict of at most {MAX_PROCESSORS} names and their arguments")
    for name, arguments in processors.items():
        if not isinstance(name, str) or not isinstance(arguments, dict) or not all(map(_is_text, arguments)):
            raise _fail("logits_processors", {name: arguments}, "names, each with a dict of arguments by name")
    try:
        return len(msgspec.json.encode(processors))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _fail("logits_processors", processors, f"plain values, as JSON has them ({error})") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _check_copies(params: SamplingParams, size_of_processors: int) -> None:
    ids = (params.stop_token_ids, params.allowed_token_ids, params.logit_bias)
    texts = (*(params.stop or ()), *(params.bad_words or ()))
    listed = sum(len(some or ()) for some in ids) + sum(map(len, texts)) + size_of_processors
    if params.n * listed > MAX_COPIED:
        raise _fail("n", params.n, f"at most {MAX_COPIED // listed} where {listed} ids and characters are listed")


def _strings(field: str, values: object, most: int) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) > most:
        raise _fail(field, values, f"a list of at most {most} strings")
    for value in values:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_LENGTH:
            raise _fail(field, value, f"strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(values)


def _ids(field: str, values: object) -> tuple[int, ...]:
    if values is None:
        return ()
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or len(values) > MAX_LISTED_IDS:
        raise _fail(field, values, f"a list of at most {MAX_LISTED_IDS} token ids")
    for value in values:
        if not _is_whole(value) or value < 0:
            raise _fail(field, value, "token ids")
    return tuple(values)


def _allowed(values: object) -> tuple[int, ...] | None:
    if values is None:
        return None
    allowed = _ids("allowed_token_ids", values)
    if not allowed:
        raise _fail("allowed_token_ids", values, "a list of at least one token id")
    return allowed

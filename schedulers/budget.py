"""Pure rules that every scheduler shares: how many tokens a row gets, when a request ends, what can never run."""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError, PromptTooLong
from headrace.core.messages import Admit, FinishReason, RunnerReady


class Stop(NamedTuple):
    """Why a request ends, and after how many of a step's new tokens."""

    num_tokens: int
    reason: FinishReason
    stop_reason: int | None


def chunk_size(remaining: int, budget: int, config: EngineConfig) -> int:
    """Return how many of a row's `remaining` tokens a step with `budget` tokens left computes; 0 is not now."""
    if remaining > budget and not config.enable_chunked_prefill:
        return 0
    return min(remaining, budget, config.max_prefill_chunk or remaining)


def drafts_for(num_tokens: int, limit: int, spare: int, config: EngineConfig) -> int:
    """Return how many drafts a decoding row of `num_tokens` tokens gets: none that could lie beyond its `limit`.

    spare: tokens of the step that no other row needs.
    """
    return max(0, min(config.num_speculative_tokens, limit - num_tokens - 1, spare))


def find_stop(new_ids: Sequence[int], num_generated: int, request: Admit) -> Stop | None:
    """Find the first of `new_ids` that ends a request which had generated `num_generated` tokens before them."""
    for i, token_id in enumerate(new_ids, start=1):
        if token_id in request.stop_ids and num_generated + i > request.min_tokens:
            return Stop(i, "stop", None if token_id in request.eos_ids else token_id)
        if num_generated + i >= request.max_tokens:
            return Stop(i, "length", None)
    return None


def check_config(config: EngineConfig, facts: RunnerReady) -> None:
    """Raise ConfigError where the limits contradict each other, so that some prompts could never run."""
    if config.step_ms is not None and not config.enable_chunked_prefill:
        raise ConfigError(
            f"engine.step_ms is {config.step_ms}, which shrinks prompt chunks, but engine.enable_chunked_prefill is"
            " false: leave the one out or set the other"
        )
    if config.enable_chunked_prefill or config.max_num_batched_tokens >= facts.max_model_len:
        return
    raise ConfigError(
        f"engine.enable_chunked_prefill is false, so a step must hold a whole prompt, but max_num_batched_tokens is "
        f"{config.max_num_batched_tokens} and max_model_len is {facts.max_model_len}; raise the one or lower the other"
    )


def check_fits(request: Admit, max_tokens: int) -> None:
    """Raise PromptTooLong if a request can't run even alone in a KV pool that holds `max_tokens` tokens.

    After a restart, it may have more tokens already than the pool of the new life holds.
    """
    most = request.num_prompt + request.max_tokens - 1  # the last token sampled is never computed
    needed = max(most, len(request.token_ids) // 4)
    if needed > max_tokens:
        raise PromptTooLong(
            f"prompt has {request.num_prompt} tokens and max_tokens is {request.max_tokens}: {needed} tokens of K/V, "
            f"but the pool holds {max_tokens} (engine.kv_cache_memory); shorten them or raise the limit",
            "prompt",
        )

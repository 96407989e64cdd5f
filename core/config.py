"""The config: typed, frozen, loaded once. What a plugins.toml says, under the same names.

Not here: which providers exist (plugins/manager.py) and facts found while loading (RunnerReady).
"""

from typing import Any, Literal

from msgspec import Struct, field

from headrace.core.errors import ConfigError


class EngineConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """[engine]: limits and options of the engine. Names are vLLM's where the meaning is the same."""

    processes: Literal["inline"] = "inline"
    """Placement of the actors: inline runs all of them on the caller's event loop."""
    max_model_len: int | None = None
    """Longest sequence in tokens, prompt and output; None: what the model can."""
    max_num_seqs: int = 64
    """Requests that run at once."""
    max_num_batched_tokens: int = 1024
    """Tokens of one step, prefill chunks and decodes together."""
    max_prefill_chunk: int | None = None
    """Most prompt tokens one request gets in a step; None: the step's whole budget."""
    enable_chunked_prefill: bool = True
    """False: a prompt is computed in one step or not yet."""
    async_scheduling: bool = True
    """Prepare step N+1 while step N computes."""
    block_size: int = 16
    """Tokens of one KV block."""
    enable_prefix_caching: bool = True
    """Reuse K/V of equal prompt starts."""
    kv_cache_memory: str | None = None
    """Memory for K/V: a size ("2GiB") or a share of the machine's ("30%"); None: what max_num_seqs full sequences need,
    at most a quarter of the memory that is free at start."""
    num_kv_blocks: int | None = None
    """Blocks of the pool, instead of kv_cache_memory."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights, activations and K/V; auto is float32 on CPUs."""
    seed: int | None = None
    """Requests without a seed get one derived from this; None: a random one."""
    deterministic: bool = False
    """Logits are bitwise independent of batch mates; slower."""
    max_queued_requests: int = 100_000
    """Open requests of one frontend; more are refused."""
    threads: int | None = None
    """Compute threads of the runner; None: one per physical core."""

    def __post_init__(self) -> None:
        """Check limits that types can't say. Raises ConfigError naming the field."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_queued_requests"):
            _at_least_one(name, getattr(self, name))
        for name in ("max_model_len", "max_prefill_chunk", "num_kv_blocks", "threads"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"engine.{name} is {value}, must be at least 1")


class Use(Struct, frozen=True, forbid_unknown_fields=True):
    """[use]: one provider per role."""

    scheduler: str = "plain"
    policy: str = "fcfs"
    kv: str = "paged"
    runner: str = "torch"


class Plugins(Struct, frozen=True, forbid_unknown_fields=True):
    """[plugins]: which installed packages to leave alone."""

    disable: tuple[str, ...] = ()
    """Entry-point names that aren't loaded."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole plugins.toml."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    use: Use = field(default_factory=Use)
    options: dict[str, dict[str, Any]] = {}
    """[options.<role>], decoded into the chosen provider's own Struct."""
    plugins: Plugins = field(default_factory=Plugins)

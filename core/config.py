"""The config: typed, frozen, loaded once. What a plugins.toml says, under the same names.

Not here: which providers exist (plugins/manager.py) and facts found while loading (RunnerReady).
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import fields

from headrace.core.decode import decode, suggest
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
    tokenizer: str = "huggingface"


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


# --- loading ----------------------------------------------------------------------------------------------------------

FILE_NAME = "plugins.toml"
FILE_VARIABLE = "HEADRACE_CONFIG"
"""The only environment variable that Headrace reads, and only here."""


class Loaded(Struct, frozen=True):
    """A config and where it comes from."""

    config: Config
    file: Path | None
    """The config file that was read, if any."""
    origins: dict[str, str]
    """"file" or "option" by path, such as engine.max_num_seqs; what isn't named is a default."""


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read the config file, put `overrides` on top, and check everything that needs no plugin.

    path: the file; else $HEADRACE_CONFIG, else ./plugins.toml, else the defaults above.
    overrides: fields of [use] and [engine] by their bare names, as keyword options of Engine. Naming another provider
        than the file does leaves out the file's [options] of that role.
    Raises ConfigError naming the file, the field's path and its value.
    """
    return trace_config(path, overrides).config


def trace_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """Do what load_config does, and tell where each value comes from."""
    file = _find_file(path)
    raw = _read_file(file) if file else {}
    of_file = {f"{section}.{name}": "file" for section, values in raw.items() for name in values}
    options = dict(overrides or {})
    origins = of_file | {_section(name) + "." + name: "option" for name in options}
    return Loaded(decode(_merge(raw, options), Config, ""), file, origins)


def _find_file(path: Path | None) -> Path | None:
    if path is not None:
        return path
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def _read_file(file: Path) -> dict[str, dict[str, Any]]:
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        decode(raw, Config, "")
    except OSError as error:
        raise ConfigError(f"config file {file} can't be read: {error.strerror}") from None
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"config file {file}: {error}") from None
    return raw


def _merge(raw: Mapping[str, dict[str, Any]], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    merged = {section: dict(values) for section, values in raw.items()}
    before = decode(merged, Config, "").use
    for name, value in options.items():
        merged.setdefault(_section(name), {})[name] = value
        if getattr(before, name, value) != value:
            merged.get("options", {}).pop(name, None)
    return merged


def _section(option: str) -> str:
    names = {
        field.name: section for section, part in (("use", Use), ("engine", EngineConfig)) for field in fields(part)
    }
    if option not in names:
        raise ConfigError(f"engine option {option!r} is unknown; {suggest(option, names)}")
    return names[option]

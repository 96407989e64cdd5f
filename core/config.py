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

    processes: Literal["split", "inline"] = "split"
    """Placement of the actors: split runs input, core, output and worker in processes of their own; inline runs all on
    the caller's event loop. LLM, `headrace generate` and `headrace chat` are inline unless told otherwise."""
    max_restarts: int = 3
    """Of an engine in several processes, after one of them died; requests go on where they were."""
    max_model_len: int | None = None
    """Longest sequence in tokens, prompt and output; None: what the model can."""
    max_num_seqs: int = 64
    """Requests that run at once."""
    max_num_batched_tokens: int = 1024
    """Tokens of one step, prefill chunks and decodes together."""
    step_ms: float | None = None
    """Milliseconds that the scheduler aims at for a step with prompt chunks, by a cost it fits to the steps before:
    chunks shrink so that they don't hold up decoding rows. Where none decodes, steps may take four times as long. None:
    what the runner says, 200 on CPUs."""
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
    num_speculative_tokens: int = 0
    """Draft tokens per row and step, at most; 0 turns drafts off."""
    kv_cache_memory: str | None = None
    """Memory for K/V: a size ("2GiB") or a share of the machine's ("30%"); None: what max_num_seqs full sequences need,
    at most a quarter of the memory that is free at start."""
    num_kv_blocks: int | None = None
    """Blocks of the pool, instead of kv_cache_memory; of layers with a sliding window no more than max_num_seqs
    sequences can need."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights, activations and K/V; auto is float32 on CPUs."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: weights are made up, the same ones each time; of the model's files only the config is read."""
    seed: int | None = None
    """Requests without a seed get one derived from this; None: a random one."""
    deterministic: bool = False
    """Logits are bitwise independent of batch mates; slower."""
    max_queued_requests: int = 100_000
    """Open requests of one frontend; more are refused."""
    threads: int | None = None
    """Compute threads of the runner; None: one per physical core."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; None: its main branch."""
    chat_template: str | None = None
    """A chat template, or the file that holds one, instead of the model's own."""

    def __post_init__(self) -> None:
        """Check limits that types can't say. Raises ConfigError naming the field."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_queued_requests"):
            _at_least(1, name, getattr(self, name))
        if self.step_ms is not None and not 0 < self.step_ms < float("inf"):
            raise ConfigError(f"engine.step_ms is {self.step_ms}, must be above 0 milliseconds")
        for name in ("max_restarts", "num_speculative_tokens"):
            _at_least(0, name, getattr(self, name))
        for name in ("max_model_len", "max_prefill_chunk", "num_kv_blocks", "threads"):
            if getattr(self, name) is not None:
                _at_least(1, name, getattr(self, name))


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ConfigError(f"engine.{name} is {value}, must be at least {least}")


class Use(Struct, frozen=True, forbid_unknown_fields=True):
    """[use]: one provider per role."""

    scheduler: str = "table"
    policy: str = "fcfs"
    kv: str = "paged"
    runner: str = "auto"
    proposer: str = "ngram"
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

ROLES = tuple(field.name for field in fields(Use))
FILE_NAME = "plugins.toml"
FILE_VARIABLE = "HEADRACE_CONFIG"
"""The only environment variable that Headrace reads, and only here."""

_Sections = dict[str, dict[str, Any]]


class Loaded(Struct, frozen=True):
    """A config and where it comes from."""

    config: Config
    file: Path | None
    """The config file that was read, if any."""
    origins: dict[str, str]
    """"file" or "argument" by path, such as engine.max_num_seqs; what isn't named is a default."""


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, dict[str, Any]] | None = None,
) -> Config:
    """Read the config file, put arguments on top, and check everything that needs no plugin.

    path: the file; else $HEADRACE_CONFIG, else ./plugins.toml, else the defaults above.
    overrides: fields of [use] and [engine] by their bare names, as keywords of Engine. Naming another provider than the
        file does leaves out the file's [options] of that role.
    options: by role, on top of the file's [options].
    Raises ConfigError naming the file, the field's path and its value.
    """
    return trace_config(path, overrides, options).config


def trace_config(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    options: Mapping[str, dict[str, Any]] | None = None,
) -> Loaded:
    """Do what load_config does, and tell where each value comes from."""
    file = _find_file(path)
    of_file = _read_file(file) if file else {}
    of_arguments: _Sections = {"use": {}, "engine": {}, "options": dict(options or {})}
    for name, value in (overrides or {}).items():
        of_arguments[_section(name)][name] = value
    origins = dict.fromkeys(_paths(of_file), "file") | dict.fromkeys(_paths(of_arguments), "argument")
    return Loaded(decode(_merge(of_file, of_arguments), Config, ""), file, origins)


def _find_file(path: Path | None) -> Path | None:
    if path is not None:
        return path
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def _read_file(file: Path) -> _Sections:
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8"))
        decode(sections, Config, "")
    except OSError as error:
        raise ConfigError(f"config file {file} can't be read: {error.strerror}") from None
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"config file {file}: {error}") from None
    return sections


def _section(name: str) -> str:
    if name in ROLES:
        return "use"
    settings = [field.name for field in fields(EngineConfig)]
    if name not in settings:
        raise ConfigError(f"engine option {name!r} is unknown; {suggest(name, [*ROLES, *settings])}")
    return "engine"


def _merge(of_file: _Sections, of_arguments: _Sections) -> _Sections:
    merged = {section: dict(values) for section, values in of_file.items()}
    before = decode(of_file, Config, "").use
    for role, name in of_arguments["use"].items():
        if name != getattr(before, role):
            merged.get("options", {}).pop(role, None)
    for section in ("use", "engine"):
        merged.setdefault(section, {}).update(of_arguments[section])
    for role, values in of_arguments["options"].items():
        given = decode(values, dict[str, Any], f"options.{role}")
        merged.setdefault("options", {})[role] = merged.get("options", {}).get(role, {}) | given
    return merged


def _paths(sections: _Sections) -> list[str]:
    return [f"{section}.{name}" for section, values in sections.items() for name in values]

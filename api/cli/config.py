"""headrace config: what is in force, as a plugins.toml."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.cli.options import takes_options
from headrace.cli.toml import to_key, to_toml


@takes_options
def config(*, engine: dict[str, Any]) -> None:
    """Print the config in force as a plugins.toml, each value with its origin."""
    for line in _lines(engine.pop("config", None), engine.pop("options", {}), engine):
        print(line)


def _lines(path: Path | None, options: dict[str, dict[str, Any]], overrides: dict[str, Any]) -> Iterator[str]:
    import msgspec

    from headrace.core.config import trace_config
    from headrace.plugins.manager import load_plugins

    loaded = trace_config(path, overrides, options)
    chosen_options = load_plugins(loaded.config).options
    sections: dict[str, dict[str, Any]] = {
        "use": msgspec.structs.asdict(loaded.config.use),
        "engine": msgspec.structs.asdict(loaded.config.engine),
        "plugins": msgspec.structs.asdict(loaded.config.plugins),
    }
    for role, chosen in chosen_options.items():
        if chosen is not None:
            sections[f"options.{role}"] = msgspec.to_builtins(chosen)
    yield (
        f"# from {loaded.file}" if loaded.file else "# no config file: $HEADRACE_CONFIG and ./plugins.toml are missing"
    )
    for section, values in sections.items():
        yield ""
        yield f"[{section}]"
        for name, value in values.items():
            yield _line(name, value, loaded.origins.get(f"{section}.{name}", "default"))


def _line(name: str, value: Any, origin: str) -> str:
    text = f"# {to_key(name)} is unset" if value is None else f"{to_key(name)} = {to_toml(value)}"
    return f"{text:<40} # {origin}" if value is not None else f"{text:<40}   {origin}"

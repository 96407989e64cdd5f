"""headrace plugins: which providers there are, where they come from, and which are in use."""

import sys
from typing import TYPE_CHECKING, Any

from headrace.cli.options import takes_options

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.plugins.registry import Registry

PIPED_WIDTH = 120
"""Columns where the output is no terminal."""


@takes_options
def plugins(*, engine: dict[str, Any]) -> None:
    """List every role with its providers, their packages and versions; a star marks what is in use."""
    from rich.console import Console

    from headrace.core.config import load_config
    from headrace.plugins.manager import load_plugins

    config = load_config(engine.pop("config", None), options=engine.pop("options", None), overrides=engine)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(_table(load_plugins(config)))
    for name in config.plugins.disable:
        console.print(f"disabled: {name}", highlight=False)


def _table(registry: "Registry") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for heading in ("role", "", "provider", "package"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    for role, providers in registry.providers.items():
        chosen = registry.chosen_name(role)
        for number, (name, registered) in enumerate(providers.items()):
            origin = registered.origin
            star = "*" if name == chosen else ""
            package = f"{origin.package} {origin.version}"
            table.add_row("" if number else role, star, name, package, registered.provider.summary)
        table.add_section()
    return table

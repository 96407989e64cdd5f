"""The `headrace` command: its subcommands, how its errors read, and its log."""

import functools
import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.bench import bench
from headrace.cli.chat import chat
from headrace.cli.config import config
from headrace.cli.generate import generate
from headrace.cli.plugins import plugins
from headrace.cli.pull import pull
from headrace.cli.serve import serve
from headrace.cli.trace import trace
from headrace.core.errors import ConfigError, HeadraceError, ModelNotFound, RequestError

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130

app = typer.Typer(
    name="headrace",
    help="Run language models with an engine whose every part is a plugin.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, serve, trace, pull, plugins, config):
    app.command()(command)
app.add_typer(bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 2 for bad input, 1 for other failures, 130 after Ctrl-C."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="headrace")
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, ConfigError | ModelNotFound | RequestError) else FAILED
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _common(
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    _log_to_terminal(log_level)


class _TerminalHandler(logging.Handler):
    """Shows records by rich, which is imported when there is one to show: most commands log nothing."""

    @functools.cached_property
    def _shown(self) -> logging.Handler:
        from rich.console import Console
        from rich.logging import RichHandler

        return RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%X")

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        self._shown.emit(record)


def _log_to_terminal(level: str) -> None:
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"--log-level is {level!r}, must be debug, info, warning or error")
    log = logging.getLogger("headrace")
    log.setLevel(level.upper())
    log.handlers = [_TerminalHandler()]

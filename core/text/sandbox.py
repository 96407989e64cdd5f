"""The sandbox that chat templates run in: they come with models, so they are programs of strangers.

They reach nothing outside and change nothing (Jinja's sandbox), and can't compute or allocate without bound in the ways
that a few characters suffice for: loops in loops, huge factors, powers, widths and numbers as arguments.
"""

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import jinja2

MAX_CPU_S = 2.0
"""Of one rendering."""
MAX_LENGTH = 1 << 24
"""Characters or elements of what a multiplication makes."""
MAX_BITS = 1 << 16
"""Of a number that is computed."""
MAX_ARGUMENT = 1_000_000
"""Largest number that a text's method, or a filter of texts, is called with."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\d{6}|\*)|\{[^{}]*(?:\d{6}|\{)")
"""A width in a format string that is too large, or comes from an argument."""
_FILTERS_WITH_NUMBERS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")


def template_environment() -> "jinja2.Environment":
    """Build what templates for transformers expect: its whitespace rules, filters and functions."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """Reads {% generation %}, which marks the assistant's words for training, as its content."""

        tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """Return the block's content."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """Jinja's sandbox with bounds."""

        intercepted_binops = frozenset(("*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            """Compute an operation if its result is of a sound size."""
            _check_size(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            """Call a function or method; a text's method not with huge numbers."""
            if isinstance(getattr(function, "__self__", None), str):
                _check_numbers(args, kwargs)
            return super().call(context, function, *args, **kwargs)

        def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
            """Put a text's format method into the sandbox, if it is one and the text has no huge width."""
            wrapped = super().wrap_str_format(value)
            if wrapped is not None:
                _check_width(value.__self__)
            return wrapped

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock])
    for name in _FILTERS_WITH_NUMBERS:
        environment.filters[name] = _bounded(environment.filters[name])
    environment.filters["tojson"] = _bounded(_to_json)
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@contextmanager
def limited_cpu(seconds: float = MAX_CPU_S) -> Iterator[None]:
    """Raise TimeoutError inside template code that has used more processor time than this.

    Template code only: one long call of a function from it isn't interrupted. A debugger's trace comes back at the end.
    """
    deadline = time.thread_time() + seconds

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > deadline:
            raise TimeoutError(f"it takes more than {seconds:.0f} s")
        return watch

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return watch if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def _check_size(operator: str, left: Any, right: Any) -> None:
    if operator == "%":
        if isinstance(left, str):
            _check_width(left)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            _refuse(f"the result of {operator} has too many digits")
    elif _length(left) * _length(right) > MAX_LENGTH:
        _refuse(f"the result of {operator} is too long")


def _length(value: Any) -> int:
    """Return how many elements there are, or how often a number repeats them."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > MAX_ARGUMENT:
            _refuse(f"a number is above {MAX_ARGUMENT:,}")


def _check_width(text: str) -> None:
    if _WIDE.search(text):
        _refuse("a format string has a width of six digits or more, or one that is an argument")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check a filter's arguments, but not what it is applied to."""

    @functools.wraps(function)
    def run(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return function(value, *args, **kwargs)

    return run


def _refuse(what: str) -> NoReturn:
    from jinja2.exceptions import SecurityError

    raise SecurityError(what)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode without Jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)

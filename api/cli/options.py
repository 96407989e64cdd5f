"""Command-line options made from the fields of config and SamplingParams: one source for names, types and help."""

import ast
import functools
import inspect
import itertools
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from headrace.core.config import EngineConfig, Use
from headrace.core.errors import ConfigError, InvalidParameter
from headrace.core.params import SamplingParams

Values = dict[str, Any]
INLINE = {"processes": "inline"}
"""What commands with one user put under their engine options: one process starts faster than five."""


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its parameters `sampling` and `engine`; only what was typed is in them.

    sampling: dict, keyword arguments of SamplingParams.
    engine:   dict, keyword arguments of Engine beside the model; what sampling has too is called --engine-... here.
    """
    own = inspect.signature(command).parameters
    made = {group: _make_options(group, set(own)) for group in _GROUPS if group in own}
    shown = [parameter for parameter in own.values() if parameter.name not in made]
    shown += [option for options in made.values() for option in options.values()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for group, options in made.items():
            typed = {name: given.pop(option.name) for name, option in options.items()}
            typed = {name: value for name, value in typed.items() if value not in (None, [])}
            given[group] = _engine(typed) if group == "engine" else _sampling(typed)
        command(**given)

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


@functools.cache
def field_docs(struct: type[Struct]) -> dict[str, str]:
    """Read the text under each field of a Struct; empty where its source isn't at hand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    except OSError:
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return docs


_GROUPS: dict[str, tuple[type[Struct], ...]] = {"sampling": (SamplingParams,), "engine": (Use, EngineConfig)}
_SAMPLING_NAMES = {field.name for field in fields(SamplingParams)}


def _make_options(group: str, beside: set[str]) -> dict[str, inspect.Parameter]:
    """Return the group's options by the name of the value that they set; `beside` are the command's own parameters."""
    made = {}
    for struct in _GROUPS[group]:
        docs = field_docs(struct)
        for field in fields(struct):
            is_taken = group == "engine" and "sampling" in beside and field.name in _SAMPLING_NAMES
            text = docs.get(field.name, f"Provider of the {field.name}.")
            if field.default not in (NODEFAULT, None):
                text += f" (default: {field.default})"
            name = f"engine_{field.name}" if is_taken else field.name
            made[field.name] = _option(name, _typed(field.type), text, group)
    if group == "engine":
        text = "Config file, instead of $HEADRACE_CONFIG or ./plugins.toml."
        made["config"] = _option("config", Path, text, group)
        made["options"] = _option("option", list[str], "Option of a provider, as ROLE.NAME=VALUE; repeatable.", group)
    return made


def _option(name: str, kind: Any, text: str, group: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    flag = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    text = text.replace("[", "\\[")  # square brackets are markup there
    option = typer.Option(flag, help=text, rich_help_panel=group.capitalize(), show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _typed(annotation: Any) -> Any:
    """Choose what the command line reads for a field's type; what it can't tell is checked where it arrives."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    last = kinds[-1]
    if get_origin(last) is Literal:
        return str
    if get_origin(last) is dict:
        return list[str]
    if get_origin(last) is Sequence:
        return list[get_args(last)[0]]  # type: ignore[misc]
    return last


def _engine(typed: Values) -> Values:
    options: dict[str, Values] = {}
    for text in typed.pop("options", []):
        path, equals, value = text.partition("=")
        role, dot, name = path.partition(".")
        if not equals or not dot:
            raise ConfigError(f"--option is {text!r}, must be ROLE.NAME=VALUE, such as policy.slack=2")
        options.setdefault(role, {})[name] = _plain_value(value)
    return typed | ({"options": options} if options else {})


def _plain_value(text: str) -> Any:
    """Read a value as TOML has it; what is no TOML is the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _sampling(typed: Values) -> Values:
    if "logit_bias" in typed:
        typed["logit_bias"] = dict(map(_bias, typed["logit_bias"]))
    if "logits_processors" in typed:
        typed["logits_processors"] = _processors(typed["logits_processors"])
    return typed


def _processors(texts: Sequence[str]) -> Values:
    """Read NAME or NAME.ARGUMENT=VALUE, repeated: a name may hold dots, its arguments don't."""
    processors: dict[str, Values] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        name, _, argument = path.rpartition(".") if equals else (path, "", "")
        if not name or (equals and not argument):
            raise InvalidParameter(
                f"--logits-processors is {text!r}, must be NAME or NAME.ARGUMENT=VALUE", "logits_processors"
            )
        processors.setdefault(name, {}).update({argument: _plain_value(value)} if argument else {})
    return processors


def _bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise InvalidParameter(f"--logit-bias is {text!r}, must be ID=BIAS, such as 42=-5", "logit_bias") from None

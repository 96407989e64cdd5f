"""Plain values, as a config file or option gives them, into Structs; errors name the field's full path. No files."""

import difflib
import re
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from headrace.core.errors import ConfigError

T = TypeVar("T")

_SHOWN = 80


def decode(value: Any, into: type[T], where: str) -> T:
    """Convert `value` into the type `into`.

    Raises ConfigError with the wrong field's path below `where`, its value and what it must be.
    """
    try:
        return msgspec.convert(value, into)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), value, into, where)) from None


def suggest(name: str, known: Iterable[str]) -> str:
    """Say which names there are, for the end of an error: "did you mean 'fcfs'? known: fcfs, priority"."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    listed = f"known: {', '.join(names) or 'none'}"
    return f"did you mean {near[0]!r}? {listed}" if near else listed


def _explain(message: str, value: Any, into: Any, where: str) -> str:
    complaint, _, path = message.partition(" - at `")
    field, value, into = _locate(value, into, path.rstrip("`"), where)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", complaint)
    if unknown:
        names = [known.encode_name for known in msgspec.structs.fields(into)]
        return f"{_join(field, unknown[1])} is unknown; {suggest(unknown[1], names)}"
    complaint = complaint[:1].lower() + complaint[1:]
    if isinstance(value, dict | list):
        return f"{field or 'the file'}: {complaint}"
    if choices := _choices(into):
        complaint = f"must be one of {', '.join(map(repr, choices))}"
    shown = repr(value)
    return f"{field} is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}: {complaint}"


def _locate(value: Any, into: Any, path: str, where: str) -> tuple[str, Any, Any]:
    """Follow msgspec's path down to the wrong value; its `[...]` is some value of a dict: the first that fails."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        into = _without_none(into)
        if name:
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(into)}
            where, value, into = _join(where, name), value[name], fields[name]
        elif index == "...":
            into = get_args(into)[-1]
            key = next((key for key, item in value.items() if _fails(item, into)), None)
            if key is None:
                return where, value, into
            where, value = _join(where, str(key)), value[key]
        else:
            arguments = get_args(into)
            into = arguments[0] if len(arguments) < 2 or arguments[1] is ... else arguments[int(index)]
            where, value = f"{where}[{index}]", value[int(index)]
    return where, value, _without_none(into)


def _fails(value: Any, into: Any) -> bool:
    try:
        msgspec.convert(value, into)
    except msgspec.ValidationError:
        return True
    return False


def _without_none(into: Any) -> Any:
    if get_origin(into) not in (Union, UnionType):
        return into
    rest = [argument for argument in get_args(into) if argument is not NoneType]
    return rest[0] if len(rest) == 1 else into


def _choices(into: Any) -> tuple[Any, ...]:
    return get_args(into) if get_origin(into) is Literal else ()


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name

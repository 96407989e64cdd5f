"""Plain values as TOML text."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(value: Any) -> str:
    """Write a value of plain types as TOML has it on one line; entries of None are left out of tables.

    Raises TypeError on a type that TOML lacks.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(to_toml, value))}]"
        case Mapping():
            entries = [f"{to_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None]
            return f"{{ {', '.join(entries)} }}" if entries else "{}"
        case _:
            raise TypeError(f"TOML has no {type(value).__name__}")


def to_key(name: str) -> str:
    """Write a key, bare where it can be."""
    is_bare = name.isascii() and name.replace("-", "_").isidentifier()
    return name if is_bare else to_toml(name)

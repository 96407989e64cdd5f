"""Checks that families share when they read a model's config. Errors name the file and the key."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from headrace.core.errors import ModelFileDamaged, UnsupportedModel

T = TypeVar("T")

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
"""A dimension; the upper bound keeps a damaged file from asking for all memory."""
LayerCount = Annotated[int, msgspec.Meta(ge=1, le=1 << 10)]
ContextLength = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
Window = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
"""Tokens that a query sees; a runner counts them in 32 bits."""
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
"""The upper bound keeps what is computed from it finite."""


def checked(where: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a Struct, checking types and limits of its fields. Raises ModelFileDamaged naming file and field."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ModelFileDamaged(f"{where}: {error}") from error


def require(where: str, key: str, found: object, supported: object) -> None:
    """Refuse a model that asks for something that isn't built in. Raises UnsupportedModel."""
    if found != supported:
        raise UnsupportedModel(f"{where}: {key} is {found!r:.80}, only {supported!r} is supported")

"""Headrace: an LLM inference engine whose scheduling, caching and model running are plugins.

Names are imported when they are first used, so that `import headrace` and workers stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.core.errors import HeadraceError
    from headrace.core.params import SamplingParams
    from headrace.engine import Engine
    from headrace.llm import LLM
    from headrace.outputs import Chunk, Completion, Logprob, Result, Timings
    from headrace.stream import Stream

_HOMES = {
    "LLM": "headrace.llm",
    "Chunk": "headrace.outputs",
    "Completion": "headrace.outputs",
    "Engine": "headrace.engine",
    "HeadraceError": "headrace.core.errors",
    "Logprob": "headrace.outputs",
    "Result": "headrace.outputs",
    "SamplingParams": "headrace.core.params",
    "Stream": "headrace.stream",
    "Timings": "headrace.outputs",
}

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Engine",
    "HeadraceError",
    "Logprob",
    "Result",
    "SamplingParams",
    "Stream",
    "Timings",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

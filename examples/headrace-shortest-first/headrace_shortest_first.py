"""A scheduling policy for Headrace: the request with the fewest tokens runs first."""

from typing import Literal

from msgspec import Struct

from headrace.core.interfaces import RequestFacts
from headrace.core.providers import CoreContext, Provider
from headrace.schedulers.policies import HeapPolicy


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """[options.policy] in plugins.toml."""

    count: Literal["prompt", "output", "both"] = "both"
    """Whose tokens are counted; those of the output are the request's max_tokens."""


class ShortestFirst(HeapPolicy):
    """Orders waiting requests by length, equal ones by submission. A steady flow of short ones starves the long."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.counts_prompt = options.count != "output"
        self.counts_output = options.count != "prompt"

    def key(self, request: RequestFacts) -> int:
        """Count the tokens; prompt tokens that the prefix cache holds cost nothing."""
        prompt = request.prompt_len - request.cached_len
        return self.counts_prompt * prompt + self.counts_output * request.max_tokens


def build(context: CoreContext, options: Options) -> ShortestFirst:
    """Build the policy, once per engine."""
    return ShortestFirst(options)


def headrace_policies() -> list[Provider]:
    """Provide `shortest-first`."""
    return [Provider("shortest-first", build, Options, summary="the fewest tokens to compute first")]

"""A request as schedulers see it, and what of it a policy may see."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.core.columns import Ints
from headrace.core.errors import InvalidParameter
from headrace.core.interfaces import BlockKeys, Policy, PolicyArgs
from headrace.core.messages import Admit, RequestId


@dataclass(slots=True, eq=False)
class Request:
    """What every scheduler knows of an unfinished request. Owner: the scheduler."""

    admit: Admit
    order: int
    args: PolicyArgs
    cached_len: int
    ids: "array[int]"
    """Known token ids: the prompt and what was generated."""
    keys: BlockKeys
    row: int | None = None
    num_cached: int = 0
    """Prompt tokens the prefix cache gave at the first admission."""
    admitted: float | None = None
    """When it was first admitted, seconds."""
    announced_row: int | None = None
    """The row that the output process knows this request by."""
    text_sent: bool = False
    facts: "Facts" = field(init=False)

    def __post_init__(self) -> None:
        """Make the view that policies get."""
        self.facts = Facts(self)

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self.admit.request

    @property
    def num_known(self) -> int:
        """Tokens whose ids the core has."""
        return len(self.ids)

    @property
    def num_generated(self) -> int:
        """Known tokens beyond the prompt."""
        return self.num_known - self.admit.num_prompt

    @property
    def limit(self) -> int:
        """Tokens of prompt and output at which nothing is left to sample."""
        return self.admit.num_prompt + self.admit.max_tokens

    def first_ids(self, num_tokens: int) -> Ints:
        """Return the first `num_tokens` ids, or as many as are known."""
        return np.array(self.ids[:num_tokens], dtype=np.int32)


class Facts:
    """What a policy sees of a request (RequestFacts): read only."""

    __slots__ = ("_request", "args", "arrival", "cached_len", "id", "max_tokens", "order", "priority", "prompt_len")

    def __init__(self, request: Request) -> None:
        self._request = request
        self.id = request.admit.request
        self.prompt_len = request.admit.num_prompt
        self.cached_len = request.cached_len
        self.max_tokens = request.admit.max_tokens
        self.priority = request.admit.priority
        self.arrival = request.admit.arrival
        self.order = request.order
        self.args = request.args

    @property
    def tenant(self) -> str | None:
        """policy_args.tenant."""
        return self.args.tenant

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return self._request.num_generated


def policy_args(admit: Admit, policy: Policy) -> PolicyArgs:
    """Return the request's policy_args as the policy wants them. Raises InvalidParameter if they don't suit it."""
    try:
        return msgspec.convert(admit.policy_args, policy.Args)
    except msgspec.ValidationError as error:
        known = ", ".join(policy.Args.__struct_fields__)
        raise InvalidParameter(f"policy_args: {error}; this policy knows: {known}", "policy_args") from None


def facts_of(requests: Sequence[Request]) -> list[Facts]:
    """Return the policy's view of these requests."""
    return [request.facts for request in requests]

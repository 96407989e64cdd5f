"""A request as schedulers see it, and what of it a policy may see."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from headrace.core.columns import Ints, ints
from headrace.core.errors import InvalidParameter
from headrace.core.interfaces import BlockKeys, Policy, PolicyArgs
from headrace.core.messages import Admit, RequestId


@dataclass(slots=True, eq=False)
class Request:
    """State of one unfinished request. Owner: the scheduler.

    num_known <= num_tokens = num_known + placeholders; num_computed <= num_tokens.
    """

    admit: Admit
    order: int
    args: PolicyArgs
    cached_len: int
    ids: "array[int]"
    """Known token ids: the prompt and what was generated."""
    keys: BlockKeys
    row: int | None = None
    num_computed: int = 0
    """Tokens whose K/V exist or are scheduled."""
    num_confirmed: int = 0
    """Tokens whose K/V were computed by steps that have returned."""
    num_bound: int = 0
    """Known tokens when the row was bound."""
    placeholders: int = 0
    """Tokens that steps in flight will sample."""
    in_flight: int = 0
    """Steps in flight that compute this request."""
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
    def num_tokens(self) -> int:
        """Known tokens and placeholders."""
        return len(self.ids) + self.placeholders

    @property
    def num_generated(self) -> int:
        """Known tokens beyond the prompt."""
        return len(self.ids) - self.admit.num_prompt

    @property
    def has_all_tokens(self) -> bool:
        """Tell whether nothing is left to sample but what is in flight."""
        return self.num_tokens >= self.admit.num_prompt + self.admit.max_tokens

    def sound_ids(self) -> Ints:
        """Return the ids whose K/V were computed by steps that have returned."""
        return np.array(self.ids[: min(self.num_confirmed, len(self.ids))], dtype=np.int32)


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


def make_request(admit: Admit, order: int, cached_len: int, keys: BlockKeys, policy: Policy) -> Request:
    """Build a request's state. Raises InvalidParameter if its policy_args don't suit the policy."""
    return Request(admit, order, _policy_args(admit, policy), cached_len, array("i", ints(admit.token_ids)), keys)


def _policy_args(admit: Admit, policy: Policy) -> PolicyArgs:
    try:
        return msgspec.convert(admit.policy_args, policy.Args)
    except msgspec.ValidationError as error:
        known = ", ".join(policy.Args.__struct_fields__)
        raise InvalidParameter(f"policy_args: {error}; this policy knows: {known}", "policy_args") from None


def facts_of(requests: Sequence[Request]) -> list[Facts]:
    """Return the policy's view of these requests."""
    return [request.facts for request in requests]

"""First come, first served."""

from headrace.core.interfaces import RequestFacts
from headrace.schedulers.policies.base import HeapPolicy


class FCFS(HeapPolicy):
    """Runs requests in the order of their submission; a preempted one keeps its place."""

    def key(self, request: RequestFacts) -> int:
        """Order by submission."""
        return request.order

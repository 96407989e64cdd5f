"""The most urgent first."""

from headrace.core.interfaces import RequestFacts
from headrace.schedulers.policies.base import HeapPolicy


class Priority(HeapPolicy):
    """Runs the lowest priority value first, ties by submission; the worst running request is preempted first."""

    def key(self, request: RequestFacts) -> tuple[int, int]:
        """Order by urgency, then by submission."""
        return request.priority, request.order

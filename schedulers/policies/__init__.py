"""Scheduling policies, one file each, and their base class for your own."""

from headrace.schedulers.policies.base import HeapPolicy

__all__ = ["HeapPolicy"]

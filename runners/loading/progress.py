"""The progress bar of long loads: on a terminal, and only once a load has taken some seconds."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

SHOW_AFTER_S = 2.0


def with_progress(items: Iterable[T], total: int, unit: str) -> Iterable[T]:
    """Pass items on, and tell on standard error how many of them have come if that is a terminal.

    unit: what one item is called, such as "tensors".
    """
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        """Without tqdm's own thread, which would wake up for as long as the process lives."""

        monitor_interval = 0

    options = {"delay": SHOW_AFTER_S, "disable": None, "leave": False, "dynamic_ncols": True}
    return Bar(items, desc="Loading the model", total=total, unit=f" {unit}", **options)

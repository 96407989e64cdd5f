"""The progress bar of long loads: on a terminal, and only once a load has taken some seconds."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

SHOW_AFTER_S = 2.0


def with_progress(items: Iterable[T], total: int, unit: str) -> Iterator[T]:
    """Pass items on, and tell on standard error how many of them have come if that is a terminal.

    unit: what one item is called, such as "tensors".
    """
    bar, end = None, time.monotonic() + SHOW_AFTER_S
    try:
        for done, item in enumerate(items, start=1):
            yield item
            if bar is not None:
                bar.update()
            elif time.monotonic() > end and sys.stderr.isatty():
                bar = _make_bar(total, done, unit)
    finally:
        if bar is not None:
            bar.close()


def _make_bar(total: int, done: int, unit: str) -> Any:
    """Build the bar; only here, since tqdm takes a while to import."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        """Without tqdm's own thread, which would wake up for as long as the process lives."""

        monitor_interval = 0

    options = {"leave": False, "dynamic_ncols": True}
    return Bar(desc="Loading the model", total=total, initial=done, unit=f" {unit}", **options)

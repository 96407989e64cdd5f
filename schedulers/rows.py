"""Rows of the persistent batch: small stable integers, fenced after use."""

from collections import deque


class RowPool:
    """Hands out rows; one that was given back waits until the steps in flight at that time have returned."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._free = list(range(max_rows - 1, -1, -1))
        self._fenced: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Take a free row. Raises IndexError if there is none."""
        return self._free.pop()

    def give(self, row: int, fence: int, returned: int) -> None:
        """Give a row back; free once step `fence` has returned. `returned` is the last step that has."""
        if fence <= returned:
            self._free.append(row)
        else:
            self._fenced.append((fence, row))

    def returned(self, step: int) -> None:
        """Free the rows that waited for `step` or an earlier one."""
        while self._fenced and self._fenced[0][0] <= step:
            self._free.append(self._fenced.popleft()[1])

    def count_fenced(self) -> int:
        """Count rows that still wait."""
        return len(self._fenced)

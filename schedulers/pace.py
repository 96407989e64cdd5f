"""How much a step may compute so that it ends in time: a cost fitted to the steps before it. No clock of its own."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_TOKENS = 128
"""Tokens of steps with a chunk, before anything was measured."""
LEAST_CHUNK = 16
"""Prompt tokens that a step computes at least, so that prompts get on beside any load."""
_UNDISTURBED = 4
"""A step in which no row decodes may take so many times as long: it holds up nobody's next token."""
_GROWTH = 2
"""A step has at most so many times the tokens of the largest one measured: further the fit is a guess."""
_MEMORY = 0.9
"""Weight that a measured step keeps with each new one."""
_SCALE = np.array([1.0, 1e-2, 1e-5])
_RIDGE = 1e-9


class Pace:
    """Fits seconds = base + tokens * a + reads * b to steps with prompt chunks. Owner: the scheduler.

    reads: K/V that a step's queries see: what attention costs. Least squares with all three at least 0, where older
    steps count less.
    """

    def __init__(self, step_s: float) -> None:
        """Aim at steps of at most `step_s` seconds."""
        self._step_s = step_s
        self._most_tokens = FIRST_TOKENS // _GROWTH
        self._squares: NDArray[Any] = np.zeros((3, 3))
        self._products: NDArray[Any] = np.zeros(3)
        self._costs: NDArray[Any] | None = None

    def observe(self, num_tokens: int, num_reads: int, seconds: float) -> None:
        """Learn from a step with a prompt chunk."""
        step = np.array([1.0, num_tokens, num_reads]) * _SCALE
        self._squares = _MEMORY * self._squares + np.outer(step, step)
        self._products = _MEMORY * self._products + step * seconds
        self._most_tokens = max(self._most_tokens, num_tokens)
        self._costs = None

    def room(self, num_tokens: int, num_reads: int, position: int, *, is_first: bool, holds_up: bool) -> int:
        """Return how many tokens of a prompt, from `position` on, a step has time for; 0 is none.

        num_tokens, num_reads: what the step has already. is_first: it has no other prompt's chunk, so it takes some.
        holds_up: rows decode in it.
        """
        base, per_token, per_read = (self._fit() * _SCALE).tolist()
        left = self._step_s * (1 if holds_up else _UNDISTURBED) - base - num_tokens * per_token - num_reads * per_read
        time_for = _most(left, per_token + (position + 0.5) * per_read, per_read / 2)
        room = int(min(time_for, _GROWTH * self._most_tokens - num_tokens))
        return max(room, LEAST_CHUNK if is_first else 0)

    def _fit(self) -> NDArray[Any]:
        if self._costs is None:
            self._costs = _not_negative(self._squares, self._products)
        return self._costs


def reads_of(start: int, num_tokens: int) -> int:
    """Count the K/V that the queries of a row from `start` on see."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


def _most(left: float, linear: float, quadratic: float) -> float:
    """Return the largest n with linear * n + quadratic * n * n <= left; infinity if nothing costs anything."""
    if left <= 0:
        return 0
    if quadratic > 0:
        return (math.sqrt(linear * linear + 4 * quadratic * left) - linear) / (2 * quadratic)
    return left / linear if linear > 0 else 1 << 30


def _not_negative(squares: NDArray[Any], products: NDArray[Any]) -> NDArray[Any]:
    """Solve the normal equations; costs that would be negative are left out, the worst first."""
    costs, used = np.zeros(3), [0, 1, 2]
    while used:
        part = squares[np.ix_(used, used)] + _RIDGE * np.eye(len(used))
        found = np.linalg.solve(part, products[used])
        if found.min() >= 0:
            costs[used] = found
            break
        del used[int(found.argmin())]
    return costs

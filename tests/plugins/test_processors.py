"""What a plugin's logits processor may give back, and who is named when it gives something else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.core.columns import Floats, Ints
from headrace.core.errors import RequestFailed
from headrace.plugins.processors import GuardedProcessor

Process = Callable[[Ints, int, Floats], Any]


def run(process: Process, logits: Floats | None = None) -> Floats:
    given = np.array([1, 2, 3], dtype=np.float32) if logits is None else logits
    return GuardedProcessor("plugin 'mine'", process)(np.array([5, 6], dtype=np.int32), 1, given)


def test_a_processor_may_change_in_place_or_return_others() -> None:
    def in_place(token_ids: Ints, num_prompt: int, logits: Floats) -> None:
        logits[token_ids[0] - 5] = 9

    assert run(in_place).tolist() == [9, 2, 3]
    assert run(lambda token_ids, num_prompt, logits: logits * 2).tolist() == [2, 4, 6]


def test_it_sees_the_ids_and_how_many_are_the_prompt() -> None:
    seen: list[Any] = []
    run(lambda token_ids, num_prompt, logits: seen.append((token_ids.tolist(), num_prompt)))
    assert seen == [([5, 6], 1)]


def scribble(token_ids: Ints, num_prompt: int, logits: Floats) -> None:
    token_ids[0] = 1


def spoil(value: float) -> Process:
    def process(token_ids: Ints, num_prompt: int, logits: Floats) -> None:
        logits[:] = value

    return process


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (lambda *_: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda: None, "raised TypeError"),
        (scribble, "raised ValueError: assignment destination is read-only"),
        (lambda *_: [1.0, 2.0, 3.0], "returned a list, must be None or float32 of shape (3,)"),
        (lambda _ids, _num, logits: logits[:2], "returned float32 of shape (2,), must be"),
        (lambda _ids, _num, logits: logits.astype(np.float64), "returned float64 of shape (3,), must be"),
        (spoil(np.nan), "made a logit nan"),
        (spoil(np.inf), "made a logit inf"),
        (spoil(-np.inf), "left no token to sample"),
    ],
)
def test_whatever_else_it_does_names_the_plugin(process: Process, reason: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        run(process)
    assert str(caught.value).startswith(f"plugin 'mine' {reason}")

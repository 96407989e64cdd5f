import numpy as np
import pytest
from headrace_no_repeat import Options, build

from headrace.core.config import EngineConfig
from headrace.core.providers import ProcessorContext

CONTEXT = ProcessorContext(EngineConfig(), None, vocab_size=10)


def ruled_out(token_ids: list[int], num_prompt: int = 0, **options: int | bool) -> list[int]:
    logits = np.zeros(10, dtype=np.float32)
    build(CONTEXT, Options(**options))(np.array(token_ids, dtype=np.int32), num_prompt, logits)
    return np.flatnonzero(logits).tolist()


@pytest.mark.parametrize(
    ("token_ids", "size", "expected"),
    [
        ([1, 2, 3, 1, 2], 3, [3]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 3, [3, 4]),
        ([1, 2, 3], 2, []),
        ([1, 2], 3, []),
        ([], 1, []),
        ([1, 2, 1], 1, [1, 2]),
        ([7, 7], 2, [7]),
    ],
)
def test_what_would_end_a_sequence_again_is_ruled_out(token_ids: list[int], size: int, expected: list[int]) -> None:
    assert ruled_out(token_ids, size=size) == expected


def test_the_prompt_may_be_left_out() -> None:
    assert ruled_out([1, 2, 1], num_prompt=2, size=2) == [2]
    assert ruled_out([1, 2, 1], num_prompt=2, size=2, counts_prompt=False) == []

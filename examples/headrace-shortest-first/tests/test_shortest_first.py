from types import SimpleNamespace
from typing import Any

import pytest
from headrace_shortest_first import Options, ShortestFirst


def request(order: int, prompt_len: int, max_tokens: int, cached_len: int = 0) -> Any:
    return SimpleNamespace(id=order, order=order, prompt_len=prompt_len, max_tokens=max_tokens, cached_len=cached_len)


def order(policy: ShortestFirst, *requests: Any) -> list[int]:
    for each in requests:
        policy.add(each)
    return [each.order for each in policy.candidates(now=0.0)]


@pytest.mark.parametrize(("count", "expected"), [("prompt", [2, 3, 1]), ("output", [3, 1, 2]), ("both", [3, 1, 2])])
def test_the_shortest_comes_first_by_what_is_counted(count: Any, expected: list[int]) -> None:
    requests = request(1, 20, 30), request(2, 5, 90), request(3, 10, 10)
    assert order(ShortestFirst(Options(count)), *requests) == expected


def test_equal_lengths_keep_the_order_of_submission() -> None:
    assert order(ShortestFirst(Options()), request(1, 5, 5), request(2, 4, 6), request(3, 6, 4)) == [1, 2, 3]


def test_cached_prompt_tokens_cost_nothing() -> None:
    assert order(ShortestFirst(Options()), request(1, 10, 5), request(2, 100, 5, cached_len=96)) == [2, 1]

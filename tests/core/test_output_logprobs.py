from collections.abc import Iterator

from output_harness import FIRST, Harness, bound, text_part, tokens

from headrace.core.columns import ints, pack_floats, pack_ints
from headrace.core.errors import ErrorInfo
from headrace.core.messages import (
    Delta,
    Ended,
    Finished,
    Logprobs,
    RequestId,
    StepOutput,
    ToFrontend,
)
from headrace.core.text.tokenizer import FolderTokenizer


def logprobs(*entries: tuple[int, int, int]) -> Logprobs:
    """Make columns of (row, position, token id): each with one alternative."""
    rows, positions, ids = zip(*entries, strict=True)
    return Logprobs(
        rows=pack_ints(rows),
        positions=pack_ints(positions),
        ranks=pack_ints([1] * len(rows)),
        widths=pack_ints([2] * len(rows)),
        token_ids=pack_ints([token_id for first in ids for token_id in (first, 60)]),
        logprobs=pack_floats([value for _ in rows for value in (-0.5, -1.0)]),
    )


def reported(message: ToFrontend) -> list[int]:
    """Return which ids a message has log probabilities of."""
    delta = message.last if isinstance(message, Finished) else message
    assert isinstance(delta, Delta)
    assert delta.logprobs is not None
    assert len(delta.logprobs) == len(ints(delta.token_ids))
    return [entry[0].token_id for entry in delta.logprobs]


def test_D09_each_token_has_its_log_probabilities(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(logprobs=1)), bound(RequestId(0, 2, 0), 1))))
    first, other = harness.handle(
        tokens((0, [50, 51]), (1, [52]), logprobs=logprobs((0, 5, 50), (0, 6, 51), (1, 5, 52)))
    )
    assert reported(first) == [50, 51]
    assert isinstance(other, Delta)
    assert other.logprobs is None
    (finished,) = harness.handle(
        tokens((0, [2]), ended=(Ended(FIRST, "stop"),), logprobs=logprobs((0, 7, 2), (9, 7, 1)))
    )
    assert reported(finished) == [2]


def test_log_probabilities_end_with_the_token_that_completed_the_stop(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    script = tiny.encode("a!b")
    harness.handle(StepOutput(bound=(bound(text=text_part(logprobs=0, stop=("!",))),)))
    columns = logprobs(*((0, 5 + index, token_id) for index, token_id in enumerate(script)))
    (finished,) = harness.handle(tokens((0, script), logprobs=columns))
    assert reported(finished) == script[:2]


def test_a_missing_log_probability_fails_its_request(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(logprobs=1)),)))
    (finished,) = harness.handle(tokens((0, [50])))
    assert isinstance(finished, Finished)
    assert finished.error == ErrorInfo("RequestFailed", "the runner reported no log probability for position 5")


def prompt_positions(message: ToFrontend) -> Iterator[int | None]:
    delta = message.last if isinstance(message, Finished) else message
    assert isinstance(delta, Delta)
    assert delta.prompt_logprobs is not None
    for entry in delta.prompt_logprobs:
        yield None if entry is None else entry[0].token_id


def test_B16_prompt_log_probabilities_come_whole_with_the_first_delta(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(prompt_logprobs=1)),)))
    assert harness.handle(StepOutput(prompt_logprobs=logprobs((0, 1, 41), (0, 2, 42)))) == []
    # preempted, and computed again from the start in another row
    harness.handle(
        StepOutput(bound=(bound(row=4, text=b""),), prompt_logprobs=logprobs((4, 1, 41), (4, 2, 42), (4, 3, 43)))
    )
    first, second = harness.handle(tokens((4, [50]), prompt_logprobs=logprobs((4, 4, 44))), tokens((4, [51])))
    assert list(prompt_positions(first)) == [None, 41, 42, 43, 44]
    assert isinstance(second, Delta)
    assert second.prompt_logprobs is None


def test_prompt_log_probabilities_of_a_request_that_ends_with_its_first_token(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(prompt_logprobs=0), num_prompt=1),)))
    (finished,) = harness.handle(tokens((0, [50]), ended=(Ended(FIRST, "length"),)))
    assert list(prompt_positions(finished)) == [None]


def test_an_abort_amid_the_prompt_has_no_prompt_log_probabilities(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(prompt_logprobs=1)),), prompt_logprobs=logprobs((0, 1, 41))))
    (finished,) = harness.handle(StepOutput(ended=(Ended(FIRST, "abort"),)))
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.last.prompt_logprobs) == ("abort", None)
    assert harness.is_idle()

from headrace.core.columns import pack_floats, pack_ints
from headrace.core.messages import Logprobs, TokenLogprob
from headrace.core.text.logprobs import read_logprobs

COLUMNS = Logprobs(
    rows=pack_ints([4, 9, 4]),
    positions=pack_ints([10, 7, 11]),
    ranks=pack_ints([3, 1, 1]),
    widths=pack_ints([3, 1, 1]),
    token_ids=pack_ints([50, 60, 70, 80, 90]),
    logprobs=pack_floats([-3.0, -0.5, -1.5, -0.25, -0.125]),
)


def test_each_position_has_its_own_token_first_and_then_the_likeliest() -> None:
    entries = read_logprobs(COLUMNS, {4}, lambda token_id: f"t{token_id}")
    assert entries == {
        (4, 10): (TokenLogprob(50, -3.0, 3, "t50"), TokenLogprob(60, -0.5, 1, "t60"), TokenLogprob(70, -1.5, 2, "t70")),
        (4, 11): (TokenLogprob(90, -0.125, 1, "t90"),),
    }


def test_rows_nobody_asked_for_are_skipped() -> None:
    assert read_logprobs(COLUMNS, (), str) == {}
    assert read_logprobs(None, {4, 9}, str) == {}

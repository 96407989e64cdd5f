import gc
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.text.stops import StopMatcher, _in_use

TEXTS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def cut(text: str, places: list[int]) -> list[str]:
    """Cut a text into pieces at these places."""
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[start:stop] for start, stop in pairwise(edges)]


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Find where the text ends and why, the slow way: by the end of the match, then by its start."""
    found = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1:] if found else None


@pytest.mark.parametrize("include", [False, True])
@settings(max_examples=300, deadline=None)
@given(text=TEXTS, stops=STOPS, places=st.lists(st.integers(1, 11)))
def test_A05_text_ends_at_the_first_match_however_it_was_cut(
    include: bool, text: str, stops: list[str], places: list[int]
) -> None:
    matcher = StopMatcher(tuple(stops), include)
    out = "".join(matcher.push(piece) for piece in cut(text, places)) + matcher.flush()
    match = first_match(text, stops)
    if match is None:
        assert (out, matcher.hit) == (text, None)
    else:
        start, stop = match
        assert (out, matcher.hit) == (text[: start + len(stop) * include], stop)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_A07_what_is_withheld_is_the_longest_proper_prefix_of_a_stop(text: str, stops: list[str]) -> None:
    matcher, seen, out = StopMatcher(tuple(stops)), "", ""
    prefixes = {stop[:size] for stop in stops for size in range(len(stop))}
    for char in text:
        seen += char
        out += matcher.push(char)
        if matcher.hit is not None:
            return
        withheld = seen[len(out) :]
        longest = max((seen[start:] for start in range(len(seen) + 1) if seen[start:] in prefixes), key=len)
        assert withheld == longest


def test_A06_a_stop_that_never_completes_loses_nothing() -> None:
    matcher = StopMatcher(("endZZ",))
    assert [matcher.push(piece) for piece in ("the e", "nd")] == ["the ", ""]
    assert matcher.flush() == "end"
    assert matcher.hit is None


def test_A07_text_that_cannot_match_is_not_withheld() -> None:
    matcher = StopMatcher(("@@@@@@@@@@@@",))
    assert [matcher.push(piece) for piece in ("some", " mail@", "example")] == ["some", " mail", "@example"]


def test_A08_of_two_matches_in_one_piece_the_earlier_wins() -> None:
    matcher = StopMatcher(("OP", "TO"))
    assert matcher.push("STOP here") == "S"
    assert matcher.hit == "TO"


def test_of_two_stops_completed_by_one_character_the_longer_wins() -> None:
    matcher = StopMatcher(("bc", "abc"))
    assert matcher.push("xabc") == "x"
    assert matcher.hit == "abc"


def test_nothing_comes_after_a_hit() -> None:
    matcher = StopMatcher(("!",))
    assert matcher.push("a!b") == "a"
    assert matcher.push("c") == matcher.flush() == ""


def test_a_long_run_of_near_matches_loses_nothing() -> None:
    """64 strings of 1,024 characters that all begin alike: each character costs one or two steps, whatever is held."""
    rng = random.Random(0)
    stops = tuple("a" * 1000 + "".join(rng.choices("bcd", k=24)) for _ in range(64))
    matcher = StopMatcher(stops)
    text = "a" * 5000 + "x"
    assert "".join(matcher.push(char) for char in text) == text


def test_J01_trees_are_shared_and_go_with_their_last_user() -> None:
    first, second = StopMatcher(("abc", "x")), StopMatcher(("abc", "x"))
    assert first._root is second._root
    del first, second
    gc.collect()
    assert len(_in_use) == 0

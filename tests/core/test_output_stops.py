import random
from typing import Any

import pytest
from output_harness import FIRST, U_FFFD, Harness, bound, run, text_part, tokens

from headrace.core.messages import (
    Ended,
    Finished,
    StepOutput,
    StopHit,
)
from headrace.core.text.tokenizer import FolderTokenizer

ALPHABET = "Here is the English alphabet: ABC, DEF, GHI, JKL, MNO, PQRS, TUV and WXYZ. Naïve 😀!"


@pytest.mark.parametrize("include", [False, True])
def test_A05_text_ends_at_the_first_occurrence_for_any_substring(tiny: FolderTokenizer, include: bool) -> None:
    script, rng = tiny.encode(ALPHABET), random.Random(4)
    for _ in range(60):
        start = rng.randrange(len(ALPHABET) - 1)
        stop = ALPHABET[start : start + rng.randint(1, 12)]
        at = ALPHABET.find(stop)
        for size in (1, 3, len(script)):
            done = run(tiny, script, size, stop=(stop, "never there"), include_stop=include)
            assert done.text == ALPHABET[: at + len(stop) * include]
            assert (done.finished.reason, done.finished.stop_reason) == ("stop", stop)


def test_A05_what_counts_does_not_depend_on_how_many_tokens_came_at_once(tiny: FolderTokenizer) -> None:
    script = tiny.encode(ALPHABET)
    counts = [run(tiny, script, size, stop=("MNO",)).token_ids for size in (1, 2, 5, len(script))]
    assert all(token_ids == script[: len(token_ids)] for token_ids in counts)
    assert len({len(token_ids) for token_ids in counts}) == 1
    assert "MNO" in tiny.decode(counts[0], True)
    assert "MNO" not in tiny.decode(counts[0][:-1], True)


def test_A06_a_stop_that_never_completes_loses_nothing(tiny: FolderTokenizer) -> None:
    done = run(tiny, tiny.encode(ALPHABET), stop=(ALPHABET[-3:] + "ZZ",))
    assert (done.text, done.finished.reason) == (ALPHABET, "length")
    assert done.finished.last.text == ALPHABET[-3:]


def test_A07_text_that_cannot_match_comes_at_once(tiny: FolderTokenizer) -> None:
    script = tiny.encode(ALPHABET)
    assert run(tiny, script, stop=("@@@@@@@@@@@@",)).deltas == run(tiny, script).deltas


def test_A08_one_token_that_completes_two_stops_ends_at_the_earlier(smol: FolderTokenizer) -> None:
    assert smol.decode([48124, 1535], True) == "STOP here"
    done = run(smol, [48124, 1535], stop=("OP", "TO"))
    assert (done.text, done.finished.stop_reason, done.token_ids) == ("S", "TO", [48124])


def test_no_stop_string_is_looked_for_before_min_tokens(tiny: FolderTokenizer) -> None:
    script = tiny.encode("a.b.c.d")
    assert run(tiny, script, stop=(".",), min_tokens=2).text == "a.b"
    assert run(tiny, script, stop=(".",), min_tokens=4).text == "a.b.c"
    assert run(tiny, script, size=7, stop=(".",), min_tokens=4).text == "a.b.c"
    assert run(tiny, script, stop=(".",), min_tokens=7).finished.reason == "length"


def test_a_stop_that_the_final_flush_completes_is_found(smol: FolderTokenizer) -> None:
    done = run(smol, [19556, 10813, 242], stop=("o" + U_FFFD,))
    assert (done.text, done.finished.reason, done.finished.stop_reason) == ("Hell", "stop", "o" + U_FFFD)


def test_a_hit_is_told_to_the_core_and_finished_at_once(tiny: FolderTokenizer) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(stop=("!",))),)))
    (finished,) = harness.handle(tokens((0, tiny.encode("ab!cd"))))
    assert isinstance(finished, Finished)
    assert (finished.last.text, finished.stop_reason) == ("ab", "!")
    assert harness.hits == [StopHit(FIRST, 3)]
    assert harness.is_idle()


@pytest.mark.parametrize("reason", ["length", "stop", "abort", "error"])
def test_what_the_core_says_after_a_hit_is_ignored(tiny: FolderTokenizer, reason: Any) -> None:
    harness = Harness(tiny)
    harness.handle(StepOutput(bound=(bound(text=text_part(stop=("!",))),)), tokens((0, tiny.encode("!"))))
    assert harness.handle(tokens((0, tiny.encode("more"))), tokens((0, [50]))) == []
    assert harness.handle(StepOutput(bound=(bound(row=3, text=b""),))) == []
    assert harness.handle(tokens((3, [50]), ended=(Ended(FIRST, reason),))) == []
    assert harness.is_idle()


def test_a_hit_in_the_message_of_the_end_needs_no_word_to_the_core(tiny: FolderTokenizer) -> None:
    done = run(tiny, tiny.encode("ab!cd"), size=5, stop=("!",))
    assert (done.finished.reason, done.text, done.hits) == ("stop", "ab", [])


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_abort_or_error_in_the_message_of_a_hit_wins(tiny: FolderTokenizer, reason: Any) -> None:
    done = run(tiny, tiny.encode("ab!cd"), size=5, stop=("!",), end=Ended(FIRST, reason))
    assert (done.finished.reason, done.finished.stop_reason) == (reason, None)

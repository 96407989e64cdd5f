"""What followed the same tokens earlier in a sequence."""

import numpy as np
import pytest

from headrace.core.errors import ConfigError
from headrace.runners.proposers.ngram import NgramOptions, what_followed


def followed(ids, least=2, most=4, count=3):
    return what_followed(np.array(ids, dtype=np.int32), least, most, count).tolist()


def test_what_followed_the_last_tokens_is_proposed():
    assert followed([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]


def test_the_longest_match_wins_over_a_later_one():
    assert followed([1, 2, 3, 7, 0, 2, 3, 8, 0, 1, 2, 3], count=1) == [7]


def test_of_equal_matches_the_latest_wins():
    assert followed([5, 6, 7, 5, 6, 8, 5, 6], count=1) == [8]


def test_a_match_that_is_followed_by_enough_wins_over_a_later_one():
    assert followed([4, 4, 4, 4, 4, 4, 4], count=3) == [4, 4, 4]


def test_at_most_as_many_as_there_are_get_proposed():
    assert followed([1, 2, 3, 1, 2], count=5) == [3, 1, 2]


@pytest.mark.parametrize("ids", [[1], [1, 2], [1, 2, 3, 9, 2], [7, 7]])
def test_without_a_match_of_two_nothing_is_proposed(ids):
    assert followed(ids) == []


def test_a_match_of_one_is_enough_where_that_is_asked():
    assert followed([1, 2, 3, 1], least=1, count=2) == [2, 3]


def test_every_proposal_is_what_a_search_by_hand_finds():
    rng = np.random.default_rng(3)
    for _ in range(300):
        ids = rng.integers(0, 3, rng.integers(1, 25)).astype(np.int32)
        found = what_followed(ids, 2, 4, 3).tolist()
        matches = {
            length: [end for end in range(length, len(ids)) if (ids[end - length : end] == ids[-length:]).all()]
            for length in (2, 3, 4)
            if length < len(ids)
        }
        longest = max((length for length, ends in matches.items() if ends), default=0)
        assert (found == []) == (longest == 0)
        if found:
            assert found in [ids[end : end + 3].tolist() for end in matches[longest]]


@pytest.mark.parametrize(("least", "most"), [(0, 2), (3, 2)])
def test_limits_that_contradict_each_other_are_refused(least, most):
    with pytest.raises(ConfigError, match="prompt_lookup_min is"):
        NgramOptions(prompt_lookup_min=least, prompt_lookup_max=most)

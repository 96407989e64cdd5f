import pytest
from harness import GREEDY

from headrace.core.columns import pack_ints
from headrace.core.errors import PromptTooLong
from headrace.core.messages import Admit, RequestId
from headrace.schedulers.budget import check_fits


def admit(num_ids, max_tokens, num_prompt=10):
    token_ids = pack_ints(range(num_ids))
    return Admit(RequestId(0, 1, 0), token_ids, num_prompt, max_tokens, min_tokens=0, stop_ids=(), sampling=GREEDY)


def test_B01_what_fits_exactly_is_taken_and_one_token_more_is_not():
    check_fits(admit(10, max_tokens=23), 32)
    with pytest.raises(PromptTooLong, match="10 tokens and max_tokens is 24: 33 tokens of K/V, but the pool holds 32"):
        check_fits(admit(10, max_tokens=24), 32)


def test_B01_tokens_from_before_a_restart_fit_too_or_would_wait_for_ever():
    check_fits(admit(32, max_tokens=5), 32)
    with pytest.raises(PromptTooLong, match="33 tokens of K/V, but the pool holds 32"):
        check_fits(admit(33, max_tokens=5), 32)

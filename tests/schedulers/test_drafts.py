"""Draft tokens in both schedulers: how many are asked for, what they cost, and how they are counted."""

import pytest
from harness import Harness
from proposers import Guesser

from headrace.core.columns import ints
from headrace.runners.kvhash import KVHashOptions, reference

PROMPT = list(range(20))


class AlwaysRight(Guesser):
    def _guess(self, ids, count):
        return self._right(ids, count)


@pytest.fixture(params=["plain", "table"])
def make(request):
    made = []

    def build(num_drafts=3, **config):
        proposer = AlwaysRight(KVHashOptions())
        config = {"block_size": 4, "num_kv_blocks": 64, **config}
        made.append(Harness(scheduler=request.param, proposer=proposer, num_speculative_tokens=num_drafts, **config))
        return made[-1]

    yield build
    for harness in made:
        harness.close()


def test_right_drafts_save_steps_and_no_token(make):
    h = make(async_scheduling=False)
    request = h.add(PROMPT, max_tokens=13)
    h.run()
    assert h.tokens[request] == reference(PROMPT, 13)
    assert h.scheduler.stats().steps == 1 + 3  # the prompt gives one token, each step after it four
    h.check_idle()


def test_drafts_are_counted_exactly_and_by_position(make):
    h = make(async_scheduling=False)
    h.add(PROMPT, max_tokens=12)
    h.run()
    drafts = h.scheduler.stats().drafts
    assert (drafts.num_drafts, drafts.num_draft_tokens) == (3, 3 + 3 + 2)  # none beyond max_tokens
    assert drafts.num_accepted_per_pos == (3, 3, 2)
    assert drafts.num_accepted_tokens == 8


def test_nothing_is_counted_where_drafts_are_off(make):
    h = make(num_drafts=0)
    h.add(PROMPT, max_tokens=12)
    h.run()
    assert h.scheduler.stats().drafts.num_drafts == 0


def test_no_draft_is_scheduled_in_a_prefill_chunk(make):
    h = make(max_prefill_chunk=8, async_scheduling=False)
    h.add(PROMPT, max_tokens=8)
    asked = []
    while h.scheduler.unfinished():
        step = h.turn()
        asked += ints(step.num_tokens).tolist() if step else []
    assert asked == [8, 8, 4, 4, 3]


def test_drafts_take_only_what_other_decoding_rows_leave_of_the_budget(make):
    h = make(max_num_batched_tokens=7, max_num_seqs=4, async_scheduling=False)
    requests = [h.add([start, start + 1], max_tokens=9) for start in range(3)]
    shares = []
    while h.scheduler.unfinished():
        step = h.turn()
        shares += [ints(step.num_tokens).tolist()] if step else []
    assert [h.tokens[request] for request in requests] == [reference([start, start + 1], 9) for start in range(3)]
    assert [4, 2, 1] in shares
    assert all(sum(share) <= 7 for share in shares)


def test_drafts_preempt_nobody(make):
    h = make(num_kv_blocks=11, num_drafts=7, async_scheduling=False)
    requests = [h.add([start] * 16, max_tokens=5) for start in range(2)]  # both fit exactly, without room for drafts
    h.run()
    assert [h.tokens[request] for request in requests] == [reference([start] * 16, 5) for start in range(2)]
    assert h.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("is_async", [True, False])
def test_a_stop_among_accepted_drafts_ends_the_request_there(make, is_async):
    expected = reference(PROMPT, 20)
    stop = next(token for token in expected[5:] if expected.index(token) >= 5)
    h = make(async_scheduling=is_async)
    request = h.add(PROMPT, max_tokens=20, stop_ids=(stop,))
    h.run()
    assert h.tokens[request] == expected[: expected.index(stop) + 1]
    assert h.reason(request) == "stop"
    h.check_idle()

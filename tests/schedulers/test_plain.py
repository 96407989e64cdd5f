import pytest
from harness import Harness

from headrace.core.columns import ints
from headrace.core.errors import BusyError, ConfigError, InvalidParameter, PromptTooLong
from headrace.core.messages import RequestId
from headrace.runners.kvhash import reference
from headrace.schedulers.policies.priority import Priority


@pytest.fixture(params=["plain", "table"], autouse=True)
def _scheduler(request, monkeypatch):
    """Every scheduler makes the same schedules."""
    monkeypatch.setattr(Harness, "default_scheduler", request.param)


def num_tokens(step):
    return dict(zip(ints(step.rows).tolist(), ints(step.num_tokens).tolist(), strict=True)) if step else {}


def test_all_that_fit_are_scheduled_as_new_with_their_full_prompts_in_order():
    h = Harness()
    for length in (5, 3, 7):
        h.add(range(length))
    step = h.schedule()
    assert [len(ints(bind.token_ids)) for bind in step.bound] == [5, 3, 7]
    assert ints(step.num_tokens).tolist() == [5, 3, 7]


def test_three_prompts_share_the_budget_in_chunks():
    h = Harness(max_num_batched_tokens=1024, max_prefill_chunk=400, async_scheduling=False, enable_prefix_caching=False)
    for start in range(3):
        h.add(range(start, start + 800), max_tokens=3)
    steps = [h.turn() for _ in range(6)]
    assert ints(steps[0].num_tokens).tolist() == [400, 400, 224]
    assert ints(steps[1].num_tokens).tolist() == [400, 400, 224]
    assert sorted(ints(steps[2].num_tokens).tolist()) == [1, 1, 352]
    h.run()
    h.check_idle()


def test_without_chunked_prefill_a_long_prompt_at_the_head_is_not_skipped():
    h = Harness(enable_chunked_prefill=False, max_num_batched_tokens=64, max_model_len=64, async_scheduling=False)
    first, long, short = h.add(range(30), 2), h.add(range(100, 150), 2), h.add(range(200, 204), 2)
    step = h.schedule()
    assert [bind.num_prompt for bind in step.bound] == [30]
    h.complete()
    h.run()
    order = list(h.ended)
    assert order.index(long) <= order.index(short)
    assert first in order


def test_B11_chunking_off_with_a_budget_below_the_context_is_refused_at_start():
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 64 and max_model_len is 512"):
        Harness(enable_chunked_prefill=False, max_num_batched_tokens=64, max_model_len=512)


def test_B11_a_budget_below_the_rows_is_shared_and_no_step_is_empty():
    h = Harness(max_num_batched_tokens=4, max_num_seqs=8, async_scheduling=False)
    requests = [h.add([i + 1], max_tokens=20) for i in range(8)]
    while h.scheduler.unfinished():
        step = h.turn()
        assert min(num_tokens(step).values()) > 0
        assert len(num_tokens(step)) == 4
    assert list(h.ended) == requests
    assert all(h.tokens[r] == reference([i + 1], 20) for i, r in enumerate(requests))


def test_B01_a_request_that_can_never_fit_is_refused_and_others_go_on():
    h = Harness(num_kv_blocks=8, max_model_len=8192)
    with pytest.raises(PromptTooLong, match="200 tokens.*pool holds 128"):
        h.add(range(200), max_tokens=4)
    hello = h.add([1, 2, 3], max_tokens=4)
    with pytest.raises(PromptTooLong, match="199 tokens of K/V, but the pool holds 128"):
        h.add(range(100), max_tokens=100)
    h.run()
    assert h.tokens[hello] == reference([1, 2, 3], 4)
    h.check_idle()


@pytest.mark.parametrize("is_async", [False, True])
def test_B02_a_resumed_request_is_not_preempted_again_and_again(is_async):
    h = Harness(num_kv_blocks=10, max_num_batched_tokens=16, async_scheduling=is_async)
    prompts = [list(range(64)), list(range(100, 164))]
    requests = [h.add(prompt, max_tokens=60) for prompt in prompts]
    produced = 0
    for turn in range(1, 1000):
        h.turn()
        if turn % 50 == 0:
            total = sum(map(len, h.tokens.values()))
            assert total > produced or len(h.ended) == 2
            produced = total
        if len(h.ended) == 2 and not h.in_flight:
            break
    assert [h.tokens[r] for r in requests] == [reference(prompt, 60) for prompt in prompts]
    assert h.scheduler.stats().preemptions <= 4
    h.check_idle()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_B03_preemption_and_async_scheduling_neither_double_nor_drop_a_token(is_async, caching):
    prompts = [[(7 * i + j) % 500 for j in range(40)] for i in range(8)]
    h = Harness(num_kv_blocks=22, max_num_batched_tokens=32, async_scheduling=is_async, enable_prefix_caching=caching)
    requests = [h.add(prompt, max_tokens=50) for prompt in prompts]
    h.run()
    assert [h.tokens[request] for request in requests] == [reference(prompt, 50) for prompt in prompts]
    assert h.scheduler.stats().preemptions >= 4
    h.check_idle()


def test_B05_a_victim_that_was_scheduled_already_leaves_the_step_and_gives_its_budget_back():
    h = Harness(policy=Priority(), num_kv_blocks=6, max_num_batched_tokens=8, async_scheduling=False)
    prompts = [list(range(46)), list(range(100, 146))]
    worse, better = h.add(prompts[0], 10, priority=5), h.add(prompts[1], 10, priority=0)
    while not h.scheduler.stats().preemptions:
        step = h.turn()
        assert sum(num_tokens(step).values()) <= 8
    h.run()
    assert h.tokens == {worse: reference(prompts[0], 10), better: reference(prompts[1], 10)}
    assert list(h.ended) == [better, worse]
    h.check_idle()


def test_B10_a_long_prefill_leaves_decoders_a_token_in_every_step():
    h = Harness(max_num_batched_tokens=64, max_model_len=8192, async_scheduling=False)
    decoders = [h.add([1], 200), h.add([2], 200)]
    h.turn()
    h.add(range(4000), 2)
    for _ in range(60):
        before = [len(h.tokens[request]) for request in decoders]
        step = h.turn()
        assert [len(h.tokens[request]) for request in decoders] == [count + 1 for count in before]
        assert sorted(ints(step.num_tokens).tolist()) == [1, 1, 62]


def test_B12_a_preempted_request_keeps_its_place():
    h = Harness(num_kv_blocks=10, max_num_batched_tokens=64)
    a, b = h.add(range(64), 60), h.add(range(100, 164), 60)
    while not h.scheduler.stats().preemptions:
        h.turn()
    c = h.add(range(200, 264), 60)
    h.run()
    assert list(h.ended) == [a, b, c]


def test_B15_a_row_that_gave_no_token_is_computed_again(script):
    h = Harness(runner=script(tokens=[5, 6, 7, 8], faults=[{"kind": "nothing", "index": 1, "prompt": 1}]))
    first, second = h.add([1, 2], 4), h.add([3, 4], 4)
    h.run()
    assert h.tokens == {first: [5, 6, 7, 8], second: [5, 6, 7, 8]}
    h.check_idle()


def test_B15_a_request_dropped_between_schedule_and_update_is_ignored():
    h = Harness()
    gone, stays = h.add([1, 2], 4), h.add([3, 4], 4)
    h.schedule()
    h.abort(gone)
    h.run()
    assert h.tokens == {gone: [], stays: reference([3, 4], 4)}
    h.check_idle()


def test_B06_abort_in_every_state_gives_one_end_and_leaves_nothing():
    def waiting(h, r):
        pass

    def mid_prefill(h, r):
        h.turn()
        h.turn()

    def decoding(h, r):
        for _ in range(12):
            h.turn()

    def in_flight(h, r):
        decoding(h, r)
        h.schedule()

    def preempted(h, r):
        decoding(h, r)
        while h.in_flight:
            h.complete()
        h.reset_prefix_cache(force=True)

    def twice(h, r):
        decoding(h, r)
        h.abort(r)

    for state in (waiting, mid_prefill, decoding, in_flight, preempted, twice):
        h = Harness(max_num_batched_tokens=16)
        request, other = h.add(range(60), 20), h.add(range(100, 130), 20)
        state(h, request)
        h.abort(request, RequestId(9, 9, 9), request)
        h.run()
        assert h.reason(request) == "abort", state.__name__
        assert h.tokens[other] == reference(range(100, 130), 20), state.__name__
        h.check_idle()


def test_B07_a_token_of_the_step_in_flight_is_not_shown_after_an_abort():
    h = Harness()
    request = h.add(range(10), 4)
    h.schedule()
    h.abort(request)
    h.run()
    assert h.tokens[request] == []
    assert h.reason(request) == "abort"


def test_B08_a_row_is_not_given_to_a_new_request_before_its_steps_returned():
    h = Harness(max_num_seqs=2)
    for i in range(200):
        old = h.add([i, 1], 5)
        h.turn()
        h.schedule()
        h.abort(old)
        new = h.add([i, 2], 3)
        h.run()
        assert h.tokens[new] == reference([i, 2], 3)
    h.check_idle()


def test_an_abort_wins_over_a_finish_in_the_same_step():
    h = Harness(async_scheduling=False)
    request = h.add([1, 2, 3], max_tokens=1)
    h.schedule()
    h.abort(request)
    h.complete()
    assert h.reason(request) == "abort"


def test_a_request_preempted_in_flight_still_gets_the_token_of_that_step_once():
    h = Harness(num_kv_blocks=10, max_num_batched_tokens=64)
    prompts = [list(range(64)), list(range(100, 164))]
    requests = [h.add(prompt, 60) for prompt in prompts]
    while not h.scheduler.stats().preemptions:
        if len(h.in_flight) == 2:
            h.complete()
        rows = {request.id: request.row for request in h.scheduler.running_requests()}
        h.schedule()
    [preempted] = [request for request in requests if h.scheduler.requests[request].row is None]
    assert [rows[preempted] in ints(step.rows) for step in h.in_flight] == [True, False]
    h.run()
    assert [h.tokens[request] for request in requests] == [reference(prompt, 60) for prompt in prompts]


def test_a_synchronous_scheduler_leaves_requests_in_flight_alone():
    h = Harness(async_scheduling=False)
    h.add([1, 2, 3], 8)
    assert h.schedule()
    assert h.schedule() is None


def test_an_asynchronous_scheduler_runs_one_step_ahead_and_never_beyond_max_tokens():
    h = Harness()
    request = h.add([1, 2, 3], max_tokens=2)
    assert h.schedule()
    assert h.schedule()
    assert h.schedule() is None
    h.run()
    assert h.tokens[request] == reference([1, 2, 3], 2)
    assert h.reason(request) == "length"


def test_stop_ids_end_a_request_and_eos_has_no_stop_reason(script):
    h = Harness(runner=script(tokens=[5, 9, 6, 2, 7]))
    by_id = h.add([1], 10, stop_ids=(9, 2), eos_ids=(2,))
    by_eos = h.add([2], 10, stop_ids=(2,), eos_ids=(2,))
    h.run()
    assert (h.tokens[by_id], h.ended[by_id].stop_reason) == ([5, 9], 9)
    assert (h.tokens[by_eos], h.ended[by_eos].stop_reason) == ([5, 9, 6, 2], None)
    assert {h.reason(by_id), h.reason(by_eos)} == {"stop"}


def test_no_stop_before_min_tokens(script):
    h = Harness(runner=script(tokens=[2, 2, 2, 2, 2]))
    request = h.add([1], 10, stop_ids=(2,), min_tokens=3)
    h.run()
    assert h.tokens[request] == [2, 2, 2, 2]


def test_limited_rows_run_the_best_priorities_first():
    h = Harness(policy=Priority(), max_num_seqs=1)
    requests = {priority: h.add([priority + 1], 3, priority=priority) for priority in (3, 0, 2, 1)}
    h.run()
    assert list(h.ended) == [requests[priority] for priority in (0, 1, 2, 3)]


def test_equal_priorities_behave_as_first_come_first_served():
    h = Harness(policy=Priority(), max_num_seqs=1)
    requests = [h.add([i + 1], 3) for i in range(4)]
    h.run()
    assert list(h.ended) == requests


def test_no_preemption_while_space_is_left():
    h = Harness(num_kv_blocks=40)
    for i in range(4):
        h.add([i] * 40, 60)
    h.run()
    assert h.scheduler.stats().preemptions == 0


def test_two_equal_prompts_in_one_step_share_their_blocks():
    h = Harness()
    requests = [h.add(range(40), 6) for _ in range(2)]
    step = h.schedule()
    assert [bind.num_computed for bind in step.bound] == [0, 32]
    h.run()
    assert all(h.tokens[request] == reference(range(40), 6) for request in requests)
    h.check_idle()


def test_the_next_turn_of_a_chat_hits_prompt_and_answer():
    h = Harness()
    prompt = list(range(20))
    first = h.add(prompt, 20)
    h.run()
    second = prompt + h.tokens[first] + [7, 8, 9]
    h.add(second, 2)
    step = h.schedule()
    assert step.bound[0].num_computed == 32
    h.run()


def test_C01_a_fully_cached_prompt_still_computes_a_token():
    h = Harness()
    first = h.add(range(32), 5)
    h.run()
    again = h.add(range(32), 5)
    assert h.schedule().bound[0].num_computed == 16
    h.run()
    assert h.tokens[again] == h.tokens[first] == reference(range(32), 5)
    h.add([*range(32), *range(100, 116)], 5)
    assert h.schedule().bound[0].num_computed == 32
    h.run()


def test_C02_an_evicted_block_keeps_no_hash():
    h = Harness(num_kv_blocks=8)
    a, b = list(range(64)), list(range(200, 296))
    first = h.add(a, 2)
    h.run()
    h.add(b, 2)
    h.run()
    again = h.add(a, 2)
    h.run()
    assert h.tokens[again] == h.tokens[first] == reference(a, 2)
    h.check_idle()


def test_C03_salts_never_share():
    h = Harness()
    for salt in ("a", "b", None, ""):
        h.add(range(32), 2, salt=salt)
        assert h.schedule().bound[0].num_computed == 0
        h.run()
    h.add(range(32), 2, salt="b")
    assert h.schedule().bound[0].num_computed == 16
    h.run()


def test_C09_equal_and_other_prompts_in_one_step_cold_and_warm():
    h = Harness()
    p, q = list(range(50)), list(range(100, 150))
    for _ in range(2):
        requests = [h.add(p, 8), h.add(p, 8), h.add(q, 8)]
        h.run()
        assert [h.tokens[request] for request in requests] == [reference(p, 8), reference(p, 8), reference(q, 8)]
    h.check_idle()


def test_C10_a_reset_is_refused_while_requests_run_and_forced_it_recomputes():
    h = Harness(async_scheduling=False)
    requests = [h.add(range(start, start + 40), 8) for start in (0, 100)]
    h.turn()
    with pytest.raises(BusyError, match="2 running requests"):
        h.reset_prefix_cache(force=False)
    h.reset_prefix_cache(force=True)
    h.check()
    h.run()
    assert [h.tokens[r] for r in requests] == [reference(range(0, 40), 8), reference(range(100, 140), 8)]
    h.reset_prefix_cache(force=False)
    h.add(range(40), 2)
    assert h.schedule().bound[0].num_computed == 0
    h.run()


def test_D13_a_row_with_nan_ends_with_an_error_and_its_mates_go_on(script):
    faults = [
        {"kind": kind, "index": 2, "prompt": prompt} for prompt, kind in ((1, "nan"), (2, "inf"), (3, "minus_inf"))
    ]
    h = Harness(runner=script(tokens=[5, 6, 7, 8], faults=faults))
    requests = [h.add([i, *range(10, 42)], 4) for i in (1, 2, 3, 4)]
    h.run()
    assert [h.reason(request) for request in requests] == ["error", "error", "error", "length"]
    assert h.tokens[requests[3]] == [5, 6, 7, 8]
    assert h.tokens[requests[0]] == [5, 6]
    h.add([1, *range(10, 42)], 1)
    assert h.schedule().bound[0].num_computed == 0
    h.run()
    h.check_idle()


def test_rows_that_hit_the_blocks_of_a_failed_row_recompute(script):
    h = Harness(runner=script(tokens=[5, 6, 7, 8], faults=[{"kind": "nan", "index": 2, "prompt": 1}]))
    prompt = [1, *range(10, 42)]
    failing, sharing = h.add(prompt, 4), h.add(prompt, 4)
    h.run()
    assert h.reason(failing) == "error"
    assert (h.tokens[sharing], h.reason(sharing)) == ([5, 6, 7, 8], "length")
    assert h.scheduler.stats().preemptions == 1
    h.check_idle()


@pytest.mark.parametrize("end", ["abort", "stop"])
def test_rows_that_hit_the_blocks_of_a_row_that_ended_before_it_failed_recompute(script, end):
    h = Harness(runner=script(tokens=[5, 6, 7, 8], faults=[{"kind": "nan", "index": 0, "prompt": 1, "times": 1}]))
    prompt = [1, *range(10, 42)]
    failing = h.add(prompt, 4)
    h.schedule()
    sharing = h.add(prompt, 4)
    assert h.schedule().bound[0].num_computed == 32
    if end == "abort":
        h.abort(failing)
    else:
        h.stop(failing, 0)
    h.complete()
    assert h.schedule() is None, "it waits for its step in flight, whose token is void"
    h.complete()
    assert h.tokens[sharing] == []
    assert h.schedule().bound[0].num_computed == 0, "nothing of the failed row is found"
    h.complete()
    h.run()
    assert (h.tokens[sharing], h.reason(sharing)) == ([5, 6, 7, 8], "length")
    assert h.reason(failing) == end
    h.check_idle()


def test_a_failed_step_ends_its_own_requests_and_others_recompute(script):
    h = Harness(runner=script(tokens=[5, 6, 7, 8], faults=[{"kind": "raise", "step": 2}]), max_num_batched_tokens=8)
    inside, outside = h.add([1] * 6, 4), h.add([2] * 20, 4)
    h.run()
    assert h.reason(inside) == "error" or h.reason(outside) == "error"
    later = h.add([3] * 4, 4)
    h.run()
    assert h.tokens[later] == [5, 6, 7, 8]
    h.check_idle()


def test_policy_args_of_a_request_are_checked_at_submission():
    h = Harness()
    with pytest.raises(InvalidParameter, match="tenants.*this policy knows: tenant"):
        h.add([1, 2], policy_args={"tenants": "a"})
    with pytest.raises(InvalidParameter, match=r"policy_args.*Expected `str \| null`"):
        h.add([1, 2], policy_args={"tenant": 3})
    assert not h.scheduler.unfinished()


def test_pausing_admissions_and_steps():
    h = Harness()
    running = h.add([1], 10)
    h.turn()
    h.pause(admissions=True, steps=False)
    waiting = h.add([2], 2)
    for _ in range(20):
        h.turn()
    assert h.reason(running) == "length"
    assert h.reason(waiting) is None
    h.pause(admissions=True, steps=True)
    assert h.schedule() is None
    h.pause(admissions=False, steps=False)
    h.run()
    h.check_idle()


def test_counters_count_each_request_once_across_preemptions():
    h = Harness(num_kv_blocks=10, max_num_batched_tokens=64)
    h.add(range(64), 60)
    h.add(range(100, 164), 60)
    h.run()
    stats = h.scheduler.stats()
    assert stats.preemptions > 0
    assert (stats.prompt_tokens, stats.generation_tokens) == (128, 120)
    assert (stats.kv.queries, stats.kv.hits) == (128, 0)
    assert stats.finished == {"stop": 0, "length": 2, "abort": 0, "error": 0}

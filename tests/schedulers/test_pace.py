"""A step's cost, fitted to the steps before it, and what that leaves for a prompt's chunk."""

import numpy as np
import pytest
from harness import Harness

from headrace.core.columns import ints
from headrace.core.errors import ConfigError
from headrace.schedulers.pace import FIRST_TOKENS, LEAST_CHUNK, Pace, reads_of


def seconds(num_tokens, num_reads, base=0.01, per_token=0.001, per_read=1e-7):
    return base + per_token * num_tokens + per_read * num_reads


def trained(step_s=0.2, steps=40, **costs):
    pace, rng = Pace(step_s), np.random.default_rng(1)
    for _ in range(steps):
        num_tokens, start = int(rng.integers(2, 300)), int(rng.integers(0, 20_000))
        num_reads = reads_of(start, num_tokens)
        pace.observe(num_tokens, num_reads, seconds(num_tokens, num_reads, **costs))
    return pace


@pytest.mark.parametrize("position", [0, 1000, 20_000, 100_000])
@pytest.mark.parametrize("beside", [0, 16])
def test_a_chunk_fills_the_step_and_no_more(position, beside):
    pace, reads = trained(), beside * 500
    room = pace.room(beside, reads, position, is_first=True, holds_up=True)
    taken = seconds(beside + room, reads + reads_of(position, room))
    more = seconds(beside + room + 1, reads + reads_of(position, room + 1))
    assert taken <= 0.2 * 1.03 or room == LEAST_CHUNK
    assert more > 0.2 * 0.97


def test_the_first_step_is_small_and_those_after_it_grow_by_half_the_largest_at_most():
    pace = Pace(1.0)
    assert pace.room(0, 0, 0, is_first=True, holds_up=True) == FIRST_TOKENS
    pace.observe(100, reads_of(0, 100), 0.001)
    assert pace.room(0, 0, 100, is_first=True, holds_up=True) == 200


def test_a_step_without_time_still_takes_a_little_of_one_prompt():
    pace = trained(step_s=0.02)
    assert pace.room(300, 10**6, 0, is_first=True, holds_up=True) == LEAST_CHUNK
    assert pace.room(300, 10**6, 0, is_first=False, holds_up=True) == 0


def test_a_step_that_holds_up_nobody_may_take_four_times_as_long():
    room = trained(step_s=0.05).room(0, 0, 0, is_first=True, holds_up=False)
    assert room == trained(step_s=0.2).room(0, 0, 0, is_first=True, holds_up=True)


def test_a_device_that_got_slower_is_noticed():
    pace = trained()
    before = pace.room(0, 0, 0, is_first=True, holds_up=True)
    rng = np.random.default_rng(2)
    for _ in range(60):
        num_tokens = int(rng.integers(2, 300))
        pace.observe(num_tokens, reads_of(0, num_tokens), 3 * seconds(num_tokens, 0))
    assert pace.room(0, 0, 0, is_first=True, holds_up=True) < before / 2


def test_steps_that_cost_nothing_leave_all_the_room_there_may_be():
    pace = Pace(0.1)
    pace.observe(100, 5000, 0.0)
    assert pace.room(0, 0, 0, is_first=True, holds_up=True) == 200


def test_reads_count_what_each_query_sees():
    assert reads_of(10, 3) == 11 + 12 + 13


@pytest.mark.parametrize("scheduler", ["plain", "table"])
def test_chunks_of_a_long_prompt_shrink_until_a_step_takes_its_time(scheduler):
    h = Harness(scheduler=scheduler, max_model_len=4000, num_kv_blocks=400, step_ms=25, async_scheduling=False)
    try:
        h.add(range(3000), max_tokens=1)
        chunks = []
        while h.scheduler.unfinished():
            step = h.schedule()
            chunks.append(int(ints(step.num_tokens).sum()))
            start = h.now
            done = h.worker.execute(h.in_flight[0])
            position = sum(chunks[:-1])
            h.now = start + seconds(chunks[-1], reads_of(position, chunks[-1]), per_read=1e-6)
            h.complete(
                type(done)(
                    **{**{f: getattr(done, f) for f in done.__struct_fields__}, "started": start, "ended": h.now}
                )
            )
        assert chunks[0] == FIRST_TOKENS
        assert sum(chunks) == 3000
        settled = chunks[4:-1]
        assert settled == sorted(settled, reverse=True), "later tokens see more"
        assert settled[0] > settled[-1]
        assert all(8 <= chunk <= 95 for chunk in settled)
    finally:
        h.close()


def test_a_goal_for_steps_without_chunks_is_refused():
    with pytest.raises(ConfigError, match=r"engine\.step_ms is 5, which shrinks prompt chunks"):
        Harness(step_ms=5, enable_chunked_prefill=False, max_num_batched_tokens=1024)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_goal_must_be_some_time(value):
    with pytest.raises(ConfigError, match=r"engine\.step_ms is"):
        Harness(step_ms=value)

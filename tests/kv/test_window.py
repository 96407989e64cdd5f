"""Groups with a sliding window: what a row holds, what it gives back, what a hit needs."""

import random

import numpy as np
import pytest

from headrace.core.columns import Ints, ints
from headrace.core.interfaces import BlockKeys
from headrace.kv.layout import StepLimits, blocks_for, window_blocks
from headrace.kv.paged import PagedKV
from headrace.kv.prefix import BlockRemoved, KVEvent, hash_blocks, root_digest
from headrace.kv.window import WindowGroup

BS = 4
WINDOW = 8
CHUNK = 12
LIMITS = StepLimits(CHUNK)


def make(
    *num_blocks: int,
    windows: tuple[int | None, ...] = (WINDOW,),
    caching: bool = True,
    limits: StepLimits = LIMITS,
    events: list[KVEvent] | None = None,
) -> PagedKV:
    """Build a manager with these groups for 8 rows of at most 32 blocks."""
    listener = None if events is None else events.append
    return PagedKV(num_blocks or (16,), BS, 8, 32, caching, listener, windows, limits)


def ids(count: int, first: int = 0) -> Ints:
    return np.arange(first, first + count, dtype=np.int32)


def keys_of(token_ids: Ints) -> BlockKeys:
    root = root_digest(None)
    return BlockKeys(root, hash_blocks(root, (), token_ids, BS))


def start(kv: PagedKV, row: int, prompt: Ints, chunk: int = CHUNK) -> int:
    """Admit a prompt and schedule its first chunk; returns its cached tokens."""
    cached = kv.admit(row, keys_of(prompt), len(prompt), True, resumed=False)
    assert cached is not None
    kv.commit(row, min(len(prompt), cached + chunk))
    return cached


def go_on(kv: PagedKV, row: int, end: int, chunk: int = CHUNK, begin: int = 0) -> bool:
    """Schedule a row up to `end`, chunk by chunk."""
    for at in range(begin, end, chunk):
        if not kv.grow(row, min(end, at + chunk)):
            return False
        kv.commit(row, min(end, at + chunk))
    return True


def serve(kv: PagedKV, prompt: Ints, num_generated: int = 0) -> int:
    """Run a whole request in row 7; returns its cached tokens."""
    cached = start(kv, 7, prompt)
    assert go_on(kv, 7, len(prompt), begin=cached + CHUNK)
    for end in range(len(prompt) + 1, len(prompt) + num_generated + 1):
        assert kv.grow(7, end)
    kv.release(7, ids(len(prompt) + num_generated, int(prompt[0])))
    kv.check_invariants()
    return cached


def num_held(kv: PagedKV) -> int:
    stats = kv.stats()
    return stats.num_blocks - stats.num_free


# --- what a row holds ---


def test_a_row_that_decodes_gives_back_a_block_for_each_that_it_gets() -> None:
    kv = make()
    start(kv, 0, ids(6))
    held = []
    for end in range(7, 120):
        assert kv.grow(0, end)
        kv.check_invariants()
        held.append(num_held(kv))
    assert max(held) == blocks_for(WINDOW - 1, BS) + 2
    assert set(held[20:]) == {max(held)}


def test_a_long_prompt_holds_its_window_and_a_chunk() -> None:
    kv = make(window_blocks(WINDOW, LIMITS, BS))
    start(kv, 0, ids(128))
    assert num_held(kv) == blocks_for(CHUNK + 1, BS)
    assert go_on(kv, 0, 128, begin=CHUNK)
    assert num_held(kv) <= kv.stats().num_blocks


def test_blocks_still_seen_by_the_first_query_of_the_step_stay() -> None:
    kv = make()
    start(kv, 0, ids(40))
    kept = kv.tables[0, 0].copy()
    assert kv.grow(0, 24)
    taken = set(kv.tables[0, 0, 4:7].tolist())
    first_seen = (CHUNK - WINDOW + 1) // BS
    assert not taken & set(kept[first_seen:3].tolist())
    assert num_held(kv) == 7 - first_seen


def test_blocks_that_left_go_tail_first_and_once() -> None:
    events: list[KVEvent] = []
    kv = make(14, events=events)
    start(kv, 0, ids(48))
    assert go_on(kv, 0, 48, begin=12)
    kv.check_invariants()
    first, *later = kv.tables[0, 0, :4].tolist()
    kv.release(0, ids(48))
    kv.check_invariants()
    assert kv.stats().num_free == 14
    events.clear()
    assert kv.admit(1, keys_of(ids(12, 500)), 12, True, False) == 0
    assert kv.admit(2, keys_of(ids(12, 600)), 12, True, False) == 0
    removed = [event.block for event in events if isinstance(event, BlockRemoved)]
    assert removed[:4] == [first, *later[::-1]]


def test_nothing_leaves_before_the_window_is_full() -> None:
    kv = make()
    start(kv, 0, ids(WINDOW - 1))
    assert kv.grow(0, WINDOW + BS)
    assert num_held(kv) == 3


def test_a_shared_block_stays_with_the_other_row() -> None:
    kv = make(32)
    prompt = ids(13)
    start(kv, 0, prompt)
    assert start(kv, 1, prompt) == 12
    shared = kv.tables[0, 1, 1:3].tolist()
    assert kv.tables[0, 0, 1:3].tolist() == shared
    for end in range(14, 40):
        assert kv.grow(0, end)
    kv.check_invariants()
    assert kv.tables[0, 1, 1:3].tolist() == shared
    assert num_held(kv) == 4 + 3


def test_what_leaves_is_room_for_what_comes() -> None:
    kv = make(5)
    start(kv, 0, ids(16))
    assert go_on(kv, 0, 16, chunk=4, begin=12)
    assert num_held(kv) == 4
    start(kv, 1, ids(3, 500))
    assert kv.stats().num_free == 0
    assert kv.grow(0, 17)
    kv.check_invariants()


def test_a_failed_growth_gives_nothing_back() -> None:
    kv = make(9)
    start(kv, 0, ids(64))
    start(kv, 1, ids(10, 500))
    start(kv, 2, ids(8, 600))
    kv.take_changes()
    before = kv.stats()
    assert before.num_free == 0
    assert not kv.grow(0, 24)
    assert kv.stats() == before
    assert kv.take_changes() == b""
    kv.check_invariants()


def test_a_request_longer_than_the_pool_runs_where_its_window_and_a_chunk_fit() -> None:
    most = window_blocks(WINDOW, LIMITS, BS)
    assert make(most).max_tokens() == 32 * BS
    assert make(most - 1).max_tokens() == (most - 1) * BS
    assert make(most, 10, windows=(WINDOW, None)).max_tokens() == 10 * BS


@pytest.mark.parametrize("seed", range(20))
def test_a_row_never_holds_more_than_is_said(seed: int) -> None:
    chance = random.Random(seed)
    window, chunk = chance.randint(1, 20), chance.randint(1, 20)
    limits = StepLimits(chunk, max_rejected=chance.choice([0, 0, 3]))
    most = window_blocks(window, limits, BS)
    kv = make(most, windows=(window,), limits=limits)
    length = chance.randint(1, 100)
    assert kv.admit(0, keys_of(ids(length)), length, True, False) == 0
    end = 0
    while end < 126:
        end = min(length, end + chance.randint(1, chunk)) if end < length else end + chance.randint(1, min(chunk, 2))
        assert kv.grow(0, end)
        if end <= length:
            kv.commit(0, end)
        assert num_held(kv) <= most


def test_adding_blocks_to_many_rows_is_growing_each_of_them() -> None:
    at_once, one_by_one = (make(40, 40, windows=(WINDOW, None)) for _ in range(2))
    rows = np.array([5, 2])
    for kv in (at_once, one_by_one):
        for row in rows.tolist():
            start(kv, row, ids(12, 100 * row))
    for length in range(12, 60, BS):
        assert at_once.add_blocks(rows)
        assert all(one_by_one.grow(row, length + 1) for row in rows.tolist())
        changes = [sorted(ints(kv.take_changes()).reshape(-1, 4).tolist()) for kv in (at_once, one_by_one)]
        assert changes[0] == changes[1]
        assert at_once.stats() == one_by_one.stats()
    at_once.check_invariants()


def test_drafts_that_may_be_rejected_keep_what_is_seen_from_before_them() -> None:
    kv = make(limits=StepLimits(CHUNK, max_rejected=5))
    start(kv, 0, ids(12))
    seen = kv.tables[0, 0, 2:4].copy()
    assert kv.grow(0, 17)
    assert kv.grow(0, 21)
    assert (kv.tables[0, 0, 2:3] == seen[:1]).all()
    assert num_held(kv) == 6 - (12 - WINDOW + 1) // BS


# --- hits ---


def test_C12_a_hit_needs_the_window_s_blocks_only() -> None:
    events: list[KVEvent] = []
    kv = make(20, events=events)
    serve(kv, ids(50))
    gone = {event.digest for event in events if isinstance(event, BlockRemoved)}
    assert not gone
    start(kv, 0, ids(40, 500), chunk=1)
    start(kv, 1, ids(40, 600), chunk=1)
    start(kv, 2, ids(40, 700), chunk=1)
    gone = {event.digest for event in events if isinstance(event, BlockRemoved)}
    keys = keys_of(ids(50))
    assert set(keys.digests[:3]) <= gone
    kv.take_changes()
    assert start(kv, 3, ids(50)) == 48
    assert kv.tables[0, 3, :10].tolist() == [0] * 10
    assert kv.tables[0, 3, 10:13].all()
    assert ints(kv.take_changes()).reshape(-1, 4)[:, 2].tolist() == [10, 11, 12]
    kv.check_invariants()


def test_without_a_block_of_the_window_a_shorter_start_is_hit() -> None:
    group = WindowGroup(8, 0, np.zeros((1, 8), np.int32), WINDOW, BS, LIMITS)
    digests = keys_of(ids(32)).digests
    group.index.add([1, 2, 3, 4], [digests[index] for index in (1, 2, 5, 6)])
    assert group.longest_hit(digests, 8) == 7
    assert group.longest_hit(digests, 6) == 3
    assert group.longest_hit(digests, 2) == 0
    assert group.hit(digests, 7) == [3, 4]


@pytest.mark.parametrize("seed", range(10))
def test_a_hit_is_the_longest_that_all_groups_accept(seed: int) -> None:
    chance = random.Random(seed)
    windows = (None, chance.randint(1, 16), chance.randint(1, 16))
    kv = make(16, 16, 16, windows=windows)
    keys = keys_of(ids(60))
    known = [[chance.random() < 0.8 for _ in keys.digests] for _ in windows]
    for group, marks in zip(kv._groups, known, strict=True):
        for digest, is_known in zip(keys.digests, marks, strict=True):
            if is_known:
                group.index.add(group.pool.take_many(1), [digest])

    def is_hit(count: int) -> bool:
        firsts = [0 if window is None else max(0, count * BS - window + 1) // BS for window in windows]
        return all(all(marks[first:count]) for marks, first in zip(known, firsts, strict=True))

    assert kv.match(keys, 61) == BS * max(count for count in range(16) if is_hit(count))


def test_the_next_turn_hits_prompt_and_answer_though_most_blocks_left() -> None:
    for num_generated in range(30, 38):
        kv = make(windows=(WINDOW,))
        serve(kv, ids(10), num_generated)
        length = 10 + num_generated
        assert kv.match(keys_of(ids(80)), 80) == length // BS * BS


# --- failures ---


def test_a_withdrawn_row_takes_back_what_left_its_window_too() -> None:
    kv = make(32)
    prompt = ids(50)
    start(kv, 0, prompt)
    assert go_on(kv, 0, 50, begin=12)
    assert start(kv, 1, prompt[:21]) == 20
    assert kv.withdraw(0) == [1]
    assert [kv.match(keys_of(prompt[:length]), length) for length in (50, 21, 9)] == [0, 0, 0]
    for row in (0, 1):
        kv.release(row, prompt[:20])
    kv.check_invariants()
    assert kv.stats().num_free == 32

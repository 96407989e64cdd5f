"""PagedKV, one behaviour at a time. What rows read through their tables: test_paged_contents.py."""

import itertools
import time
from collections.abc import Iterable

import numpy as np
import pytest

from headrace.core.columns import Ints, ints
from headrace.core.config import EngineConfig
from headrace.core.interfaces import BlockKeys, KVManager
from headrace.core.messages import KVGroup, RunnerReady
from headrace.core.providers import CoreContext
from headrace.kv.paged import PagedKV
from headrace.kv.prefix import BlockRemoved, BlockStored, CacheCleared, KVEvent, hash_blocks, root_digest

BS = 16
NOTHING = np.array([], np.int32)


def make(*num_blocks: int, caching: bool = True, events: list[KVEvent] | None = None) -> PagedKV:
    """Build a manager with these groups, 8 blocks by default, for 8 rows of at most 32 blocks."""
    listener = None if events is None else events.append
    return PagedKV(num_blocks or (8,), BS, 8, 32, enable_prefix_caching=caching, listener=listener)


def ids(count: int, first: int = 0) -> Ints:
    """Return so many ids; those that start elsewhere share no block."""
    return np.arange(first, first + count, dtype=np.int32)


def keys_of(token_ids: Ints, salt: str | None = None, adapter: str | None = None) -> BlockKeys:
    """Hash a prompt as the input process does."""
    root = root_digest(salt, adapter)
    return BlockKeys(root, hash_blocks(root, (), token_ids, BS))


def admit(kv: KVManager, row: int, prompt: Ints, salt: str | None = None, read_cache: bool = True) -> int:
    """Admit a prompt and schedule all of it."""
    cached = kv.admit(row, keys_of(prompt, salt), len(prompt), read_cache, resumed=False)
    assert cached is not None
    kv.commit(row, len(prompt))
    return cached


def serve(kv: KVManager, prompt: Ints, salt: str | None = None, generated: Iterable[int] = ()) -> int:
    """Run a whole request in row 7; returns its cached tokens."""
    cached = admit(kv, 7, prompt, salt)
    tokens = np.concatenate([prompt, np.array(list(generated), np.int32)])
    assert kv.grow(7, len(tokens))
    kv.release(7, tokens)
    kv.check_invariants()
    return cached


def blocks_of(kv: PagedKV, row: int, count: int, group: int = 0) -> list[int]:
    """List a row's first blocks."""
    blocks: list[int] = kv.tables[group, row, :count].tolist()
    return blocks


# --- cases ---


def test_C01_a_prompt_cached_whole_still_computes_its_last_block() -> None:
    kv = make()
    assert serve(kv, ids(32)) == 0
    assert serve(kv, ids(32)) == 16
    assert serve(kv, ids(48)) == 32


def test_C02_a_reused_block_has_lost_its_old_hash() -> None:
    kv = make()
    first, second = ids(64), ids(96, 1000)
    serve(kv, first)
    serve(kv, second)
    assert kv.match(keys_of(first), 64) == 32
    assert kv.match(keys_of(second), 97) == 96
    assert serve(kv, first) == 32
    assert kv.match(keys_of(first), 65) == 64
    assert kv.match(keys_of(second), 97) == 64


def test_C03_salts_and_adapters_never_share_blocks() -> None:
    prompt = ids(33)
    domains = [{"salt": "a"}, {"salt": "b"}, {"salt": None}, {"salt": ""}, {"adapter": "a"}, {"adapter": ""}]
    for one, other in itertools.permutations(domains, 2):
        kv = make()
        kv.admit(0, keys_of(prompt, **one), 33, True, False)
        kv.commit(0, 33)
        assert kv.match(keys_of(prompt, **other), 33) == 0
        assert kv.match(keys_of(prompt, **one), 32) == 16


def test_C05_a_request_that_must_not_read_the_cache_still_fills_it() -> None:
    kv = make()
    for _ in range(2):
        assert admit(kv, 0, ids(33), read_cache=False) == 0
        kv.release(0, ids(33))
    assert kv.stats().queries == 0
    assert serve(kv, ids(33)) == 32
    assert admit(kv, 0, ids(33), read_cache=False) == 0


def test_C06_the_tail_of_a_request_is_evicted_before_its_head() -> None:
    kv = make()
    serve(kv, ids(64))
    serve(kv, ids(96, 1000))
    assert serve(kv, ids(64)) == 32


def test_C06_a_hit_makes_a_block_the_newest() -> None:
    kv = make(6)
    serve(kv, ids(48))
    serve(kv, ids(48, 1000))
    assert serve(kv, ids(47)) == 32
    assert admit(kv, 0, ids(64, 2000)) == 0
    assert kv.match(keys_of(ids(48)), 48) == 32
    assert kv.match(keys_of(ids(48, 1000)), 48) == 0


def test_C08_releasing_a_row_twice_raises_and_changes_nothing() -> None:
    kv = make()
    admit(kv, 0, ids(40))
    kv.release(0, ids(40))
    with pytest.raises(RuntimeError, match="row 0 is not bound"):
        kv.release(0, ids(40))
    kv.check_invariants()
    assert kv.stats().num_free == 8


def test_C09_equal_prompts_in_one_step_share_their_blocks() -> None:
    kv = make()
    prompt, other = ids(40), ids(40, 1000)
    assert [admit(kv, row, tokens) for row, tokens in enumerate((prompt, prompt, other))] == [0, 32, 0]
    assert blocks_of(kv, 0, 2) == blocks_of(kv, 1, 2)
    assert kv.stats().num_free == 8 - 3 - 1 - 3
    for row in range(3):
        kv.release(row, NOTHING)
        kv.check_invariants()
    assert kv.stats().num_free == 8


def test_C10_after_a_reset_nothing_is_cached_and_blocks_in_use_stay_in_use() -> None:
    kv = make()
    serve(kv, ids(33, 1000))
    admit(kv, 0, ids(40))
    kv.reset()
    kv.check_invariants()
    assert kv.stats().num_free == 8 - 3
    assert kv.match(keys_of(ids(40)), 40) == kv.match(keys_of(ids(33, 1000)), 33) == 0
    kv.commit(0, 40)
    kv.release(0, ids(40))
    assert serve(kv, ids(40)) == 0
    assert serve(kv, ids(40)) == 32


def test_C10_a_row_bound_at_a_reset_registers_nothing_after_it() -> None:
    kv = make()
    kv.admit(0, keys_of(ids(40)), 40, True, False)
    kv.reset()
    kv.commit(0, 40)
    kv.release(0, ids(40))
    kv.check_invariants()
    assert kv.match(keys_of(ids(40)), 40) == 0


def test_C12_repeats_in_groups_with_a_window_hit_the_same_blocks() -> None:
    context = context_of(KVGroup(2, 8), KVGroup(2, 9, window=32))
    kv = PagedKV.from_context(context)
    assert [serve(kv, ids(100)) for _ in range(4)] == [0, 96, 96, 96]
    assert kv.stats().num_free == 8 + 9


def test_K01_recomputing_after_a_preemption_counts_as_no_hit() -> None:
    kv = make()
    keys = keys_of(ids(40))
    assert kv.admit(0, keys, 40, True, resumed=False) == 0
    kv.commit(0, 40)
    kv.release(0, ids(40))
    assert kv.admit(1, keys, 41, True, resumed=True) == 32
    stats = kv.stats()
    assert (stats.queries, stats.hits, stats.resume_hits) == (40, 0, 32)


# --- admission and growth ---


def test_prediction_is_what_admission_takes() -> None:
    kv = make()
    serve(kv, ids(64))
    for num_tokens in (1, 16, 17, 33, 64, 65):
        keys = keys_of(ids(num_tokens))
        predicted = kv.match(keys, num_tokens)
        assert kv.admit(0, keys, num_tokens, True, False) == predicted == (num_tokens - 1) // BS * BS
        kv.release(0, NOTHING)


def test_a_sequence_of_no_tokens_matches_nothing() -> None:
    kv = make()
    serve(kv, ids(64))
    assert kv.match(keys_of(ids(64)), 0) == 0


def test_hit_blocks_that_are_free_are_no_room_for_new_ones() -> None:
    kv = make(4)
    serve(kv, ids(32))
    admit(kv, 0, ids(16, 1000))
    assert kv.stats().num_free == 3
    assert kv.admit(1, keys_of(ids(64)), 64, True, False) is None
    assert kv.admit(1, keys_of(ids(48)), 48, True, False) == 32


def test_a_failed_admission_changes_nothing() -> None:
    kv = make(6, 4)
    serve(kv, ids(32))
    before = kv.stats()
    keys = keys_of(ids(80))
    assert kv.admit(0, keys, 80, True, False) is None
    kv.check_invariants()
    assert kv.stats() == before
    assert kv.take_changes() == b""
    assert kv.match(keys, 80) == 32


def test_growing_inside_a_block_takes_none_and_into_the_next_takes_one() -> None:
    kv = make()
    admit(kv, 0, ids(30))
    free = kv.stats().num_free
    assert [kv.grow(0, num_tokens) for num_tokens in (31, 32)] == [True, True]
    assert kv.stats().num_free == free
    assert kv.grow(0, 33)
    assert kv.stats().num_free == free - 1


def test_a_failed_growth_changes_nothing() -> None:
    kv = make(4, 3)
    admit(kv, 0, ids(48))
    kv.take_changes()
    before = kv.stats()
    assert not kv.grow(0, 49)
    assert kv.stats() == before
    assert kv.take_changes() == b""
    kv.check_invariants()


def test_adding_blocks_to_many_rows_is_growing_each_of_them() -> None:
    at_once, one_by_one = make(9, 9), make(9, 9)
    for kv in (at_once, one_by_one):
        for row in (2, 0, 5):
            admit(kv, row, ids(BS, first=100 * row))
        kv.take_changes()
    rows = np.array([5, 2])
    assert at_once.add_blocks(rows)
    assert all(one_by_one.grow(row, 2 * BS) for row in rows.tolist())
    assert (at_once.tables == one_by_one.tables).all()
    changes = [sorted(ints(kv.take_changes()).reshape(-1, 4).tolist()) for kv in (at_once, one_by_one)]
    assert changes[0] == changes[1]
    at_once.check_invariants()


def test_adding_more_blocks_than_are_free_changes_nothing() -> None:
    kv = make(8, 3)
    for row in (0, 1):
        admit(kv, row, ids(BS, first=100 * row))
    kv.take_changes()
    assert not kv.add_blocks(np.array([0, 1]))
    assert (kv.stats().num_free, kv.take_changes()) == (7, b"")
    kv.check_invariants()


def test_adding_blocks_to_a_row_in_the_wrong_state_raises() -> None:
    kv = make(40)
    admit(kv, 0, ids(32 * BS))
    with pytest.raises(RuntimeError, match="one of the rows \\[0, 1\\] is not bound"):
        kv.add_blocks(np.array([0, 1]))
    with pytest.raises(RuntimeError, match="holds 32 blocks, which is the most"):
        kv.add_blocks(np.array([0]))
    kv.check_invariants()


def test_a_hit_is_what_all_groups_hold() -> None:
    kv = make(8, 3)
    serve(kv, ids(48))
    serve(kv, ids(16, 1000))
    assert serve(kv, ids(48)) == 32


def test_the_smallest_group_and_the_table_limit_a_request() -> None:
    assert make(8, 3).max_tokens() == 3 * BS
    assert make(100).max_tokens() == 32 * BS


def test_more_tokens_than_a_table_holds_raise() -> None:
    kv = make(100)
    with pytest.raises(RuntimeError, match="a row holds at most 512"):
        kv.admit(0, keys_of(NOTHING), 513, True, False)
    admit(kv, 0, ids(512))
    with pytest.raises(RuntimeError, match="513 tokens are asked for"):
        kv.grow(0, 513)
    kv.check_invariants()


def test_a_row_in_the_wrong_state_is_named() -> None:
    kv = make()
    admit(kv, 2, ids(8))
    with pytest.raises(RuntimeError, match="row 2 is admitted, but still bound"):
        kv.admit(2, keys_of(ids(8)), 8, True, False)
    for call in (lambda: kv.grow(3, 8), lambda: kv.commit(3, 8), lambda: kv.release(3, NOTHING)):
        with pytest.raises(RuntimeError, match="row 3 is not bound"):
            call()


# --- registering ---


def test_the_next_turn_of_a_chat_hits_prompt_and_answer() -> None:
    kv = make()
    serve(kv, ids(20), generated=range(20, 50))
    assert serve(kv, ids(70)) == 48


def test_a_partly_filled_block_is_not_registered() -> None:
    kv = make()
    admit(kv, 0, ids(40))
    assert kv.match(keys_of(ids(48)), 49) == 32


def test_a_chunk_registers_only_what_is_scheduled() -> None:
    kv = make()
    keys = keys_of(ids(64))
    kv.admit(0, keys, 64, True, False)
    for scheduled, found in ((15, 0), (16, 16), (40, 32), (64, 48)):
        kv.commit(0, scheduled)
        assert kv.match(keys, 64) == found


def test_release_extends_the_digests_over_sound_tokens_only() -> None:
    kv = make()
    keys = keys_of(ids(20))
    kv.admit(0, keys, 20, True, False)
    assert kv.grow(0, 50)
    kv.release(0, ids(35))
    assert keys.digests == keys_of(ids(35)).digests
    assert kv.match(keys_of(ids(50)), 50) == 32


def test_a_request_released_early_keeps_the_digests_of_its_prompt() -> None:
    kv = make()
    keys = keys_of(ids(64))
    kv.admit(0, keys, 64, True, False)
    kv.commit(0, 20)
    kv.release(0, ids(20))
    assert len(keys.digests) == 4
    assert kv.match(keys, 64) == 16


def test_a_free_block_makes_way_for_a_new_one_of_the_same_content() -> None:
    kv = make()
    for _ in range(5):
        serve(kv, ids(20), generated=range(20, 64))
    serve(kv, ids(64, 1000))
    assert kv.match(keys_of(ids(64)), 65) == 64


def test_twins_in_use_are_lost_one_at_a_time() -> None:
    kv = make(4)
    prompt = ids(32)
    admit(kv, 0, prompt, read_cache=False)
    admit(kv, 1, prompt, read_cache=False)
    kv.release(0, prompt)
    admit(kv, 2, ids(32, 1000))
    assert kv.match(keys_of(prompt), 33) == 32
    kv.release(1, prompt)
    kv.release(2, NOTHING)
    admit(kv, 3, ids(48, 2000))
    assert kv.match(keys_of(prompt), 33) == 0


def test_without_caching_nothing_is_found_hashed_or_counted() -> None:
    kv = make(caching=False)
    keys = BlockKeys(b"")
    for _ in range(2):
        assert kv.admit(0, keys, 40, True, False) == 0
        kv.commit(0, 40)
        kv.release(0, ids(40))
    assert keys.digests == []
    assert kv.match(keys_of(ids(40)), 40) == 0
    assert kv.stats().queries == kv.stats().hits == 0


def test_queries_and_hits_count_once_per_admission() -> None:
    kv = make(4)
    serve(kv, ids(40))
    admit(kv, 0, ids(40))
    for _ in range(3):
        assert kv.admit(1, keys_of(ids(40, 1000)), 40, True, False) is None
        kv.match(keys_of(ids(40)), 40)
    stats = kv.stats()
    assert (stats.queries, stats.hits, stats.resume_hits) == (80, 32, 0)


# --- withdrawing ---


def test_a_withdrawn_row_leaves_nothing_behind() -> None:
    kv = make()
    admit(kv, 0, ids(20))
    assert kv.grow(0, 64)
    assert kv.withdraw(0) == []
    assert kv.match(keys_of(ids(20)), 20) == 0
    kv.commit(0, 64)
    kv.release(0, ids(64))
    assert kv.match(keys_of(ids(64)), 65) == 0
    assert serve(kv, ids(20)) == 0
    assert kv.match(keys_of(ids(64)), 65) == 16


def test_rows_that_hit_a_withdrawn_row_are_returned_and_no_others() -> None:
    kv = make(20)
    serve(kv, ids(16))
    assert [admit(kv, 0, ids(40)), admit(kv, 1, ids(40)), admit(kv, 2, ids(17))] == [16, 32, 16]
    admit(kv, 3, ids(40, 1000))
    assert kv.withdraw(0) == [1]
    assert kv.match(keys_of(ids(40)), 40) == 16


def test_blocks_computed_from_withdrawn_ones_go_too_though_a_twin_leads_to_them() -> None:
    kv = make(20)
    prompt = ids(50)
    admit(kv, 0, prompt[:20])
    assert admit(kv, 1, prompt[:40]) == 16
    admit(kv, 2, prompt[:20], read_cache=False)
    assert kv.withdraw(0) == [1]
    assert kv.match(keys_of(prompt), 50) == 16


def test_a_row_that_read_a_row_that_read_a_failed_one_is_returned() -> None:
    kv = make(20)
    prompt = ids(50)
    assert [admit(kv, 0, prompt[:20]), admit(kv, 1, prompt[:40]), admit(kv, 2, prompt)] == [0, 16, 32]
    assert sorted(kv.withdraw(0)) == [1, 2]
    assert kv.withdraw(1) == kv.withdraw(2) == []
    for row in (1, 2):
        kv.release(row, prompt)
    assert kv.match(keys_of(prompt), 50) == 0


def test_a_released_row_can_be_withdrawn_until_it_is_admitted_again() -> None:
    kv = make(20)
    admit(kv, 0, ids(40))
    assert admit(kv, 1, ids(50)) == 32
    kv.release(0, ids(40))
    assert kv.withdraw(0) == [1]
    assert kv.match(keys_of(ids(50)), 50) == 0
    admit(kv, 0, ids(40, 1000))
    assert kv.withdraw(0) == []


def test_withdrawing_a_released_row_spares_blocks_that_others_took_since() -> None:
    kv = make(3)
    admit(kv, 0, ids(48))
    kv.release(0, ids(48))
    admit(kv, 1, ids(48, 1000))
    assert kv.withdraw(0) == []
    assert kv.match(keys_of(ids(48, 1000)), 49) == 48


def test_rows_that_hit_what_others_wrote_into_a_withdrawn_row_s_old_blocks_are_spared() -> None:
    kv = make(3)
    admit(kv, 0, ids(16))
    admit(kv, 5, ids(32, 500))
    old = blocks_of(kv, 0, 1)
    kv.release(0, ids(16))
    admit(kv, 1, ids(16, 1000))
    kv.release(5, NOTHING)
    assert admit(kv, 2, ids(17, 1000)) == 16
    assert blocks_of(kv, 2, 1) == old
    assert kv.withdraw(0) == []


def test_withdrawn_blocks_are_the_next_to_be_taken() -> None:
    kv = make(4)
    admit(kv, 0, ids(32))
    serve(kv, ids(32, 1000))
    kv.withdraw(0)
    kv.release(0, NOTHING)
    admit(kv, 1, ids(32, 2000))
    assert kv.match(keys_of(ids(32, 1000)), 33) == 32


def test_a_withdrawal_after_a_reset_still_finds_the_rows_that_hit() -> None:
    kv = make()
    admit(kv, 0, ids(40))
    admit(kv, 1, ids(40))
    kv.reset()
    assert kv.withdraw(0) == [1]


# --- changes of tables ---


def test_changes_name_group_row_index_and_block() -> None:
    kv = make(8, 9)
    admit(kv, 3, ids(20))
    changes = ints(kv.take_changes()).reshape(-1, 4).tolist()
    expected = [[group, 3, index, kv.tables[group, 3, index]] for group in range(2) for index in range(2)]
    assert changes == expected
    assert kv.take_changes() == b""


def test_growth_is_told_as_growth() -> None:
    kv = make()
    admit(kv, 0, ids(20))
    admit(kv, 1, ids(20, 1000))
    kv.take_changes()
    assert kv.grow(0, 33)
    assert kv.grow(0, 49)
    assert ints(kv.take_changes()).reshape(-1, 4)[:, :3].tolist() == [[0, 0, 2], [0, 0, 3]]


def test_growth_right_after_admission_is_told_with_it() -> None:
    kv = make()
    admit(kv, 0, ids(20))
    assert kv.grow(0, 33)
    assert ints(kv.take_changes()).reshape(-1, 4)[:, 2].tolist() == [0, 1, 2]


def test_a_row_released_before_its_changes_were_taken_has_none() -> None:
    kv = make()
    admit(kv, 0, ids(20))
    admit(kv, 1, ids(20, 1000))
    kv.release(0, NOTHING)
    assert set(ints(kv.take_changes()).reshape(-1, 4)[:, 1].tolist()) == {1}


# --- events ---


def test_events_tell_of_removal_before_a_block_is_stored_again() -> None:
    events: list[KVEvent] = []
    kv = make(2, events=events)
    first, second = ids(32), ids(32, 1000)
    serve(kv, first)
    serve(kv, second)
    kv.reset()
    (a, b), (c, d) = keys_of(first).digests, keys_of(second).digests
    assert events == [
        BlockStored(0, 1, a),
        BlockStored(0, 2, b),
        BlockRemoved(0, 2, b),
        BlockRemoved(0, 1, a),
        BlockStored(0, 2, c),
        BlockStored(0, 1, d),
        CacheCleared(),
    ]


# --- from the engine ---


def context_of(*groups: KVGroup, max_model_len: int = 128, caching: bool = True) -> CoreContext:
    """Describe an engine whose runner found these groups."""
    facts = RunnerReady(vocab_size=10, max_model_len=max_model_len, groups=groups, bytes_per_block=1024)
    return CoreContext(EngineConfig(block_size=BS, enable_prefix_caching=caching), facts, 8, time.monotonic)


def test_a_row_holds_the_longest_sequence_and_one_token_more() -> None:
    kv = PagedKV.from_context(context_of(KVGroup(2, 100)))
    assert kv.tables.shape == (1, 8, 9)
    assert kv.block_size == BS
    assert kv.max_tokens() == 9 * BS


def test_the_config_turns_caching_off() -> None:
    kv = PagedKV.from_context(context_of(KVGroup(2, 8), caching=False))
    assert [serve(kv, ids(40)), serve(kv, ids(40))] == [0, 0]

"""SimpleKV, one behaviour at a time. What rows read through their tables: test_paged_contents.py."""

import time

import numpy as np
import pytest

from headrace.core.columns import ints
from headrace.core.config import EngineConfig
from headrace.core.interfaces import BlockKeys
from headrace.core.messages import KVGroup, RunnerReady
from headrace.core.providers import CoreContext
from headrace.kv.simple import SimpleKV

KEYS = BlockKeys(b"")
NOTHING = np.array([], np.int32)


def test_nothing_is_ever_cached() -> None:
    kv = SimpleKV(8, 4)
    for _ in range(2):
        assert kv.match(KEYS, 10) == 0
        assert kv.admit(0, KEYS, 10, True, False) == 0
        kv.commit(0, 10)
        assert kv.withdraw(0) == []
        kv.release(0, np.arange(10, dtype=np.int32))
    assert kv.stats().queries == 0


def test_lacking_blocks_change_nothing() -> None:
    kv = SimpleKV(3, 4)
    assert kv.admit(0, KEYS, 13, True, False) is None
    assert kv.admit(0, KEYS, 8, True, False) == 0
    assert kv.admit(1, KEYS, 5, True, False) is None
    assert not kv.grow(0, 13)
    assert kv.stats().num_free == 1
    kv.check_invariants()
    assert kv.grow(0, 12)
    assert kv.max_tokens() == 12


def test_a_released_block_is_free_again_and_its_changes_are_dropped() -> None:
    kv = SimpleKV(3, 4)
    kv.admit(0, KEYS, 9, True, False)
    kv.release(0, NOTHING)
    assert kv.take_changes() == b""
    assert kv.stats().num_free == 3
    kv.check_invariants()


def test_every_group_uses_the_same_blocks() -> None:
    kv = SimpleKV(3, 4, num_groups=2)
    kv.admit(5, KEYS, 8, True, False)
    assert ints(kv.take_changes()).reshape(-1, 4).tolist() == [[0, 5, 0, 1], [0, 5, 1, 2], [1, 5, 0, 1], [1, 5, 1, 2]]
    assert kv.take_changes() == b""


def test_a_bound_row_cannot_be_admitted() -> None:
    kv = SimpleKV(3, 4)
    kv.admit(0, KEYS, 4, True, False)
    with pytest.raises(RuntimeError, match="row 0 is admitted, but still bound"):
        kv.admit(0, KEYS, 4, True, False)


def test_the_smallest_group_gives_the_number_of_blocks() -> None:
    facts = RunnerReady(vocab_size=10, max_model_len=64, groups=(KVGroup(1, 7), KVGroup(1, 5)), bytes_per_block=1)
    kv = SimpleKV.from_context(CoreContext(EngineConfig(block_size=4), facts, 8, time.monotonic))
    assert kv.stats().num_blocks == 5
    assert kv.block_size == 4

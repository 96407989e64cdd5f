"""BlockPool alone: tiers, order, counts."""

import random

import pytest

from headrace.kv.pool import BlockPool


def cached_pool(num_blocks: int) -> tuple[BlockPool, list[list[int]]]:
    """Return a pool whose blocks are all free and cached, 1 the least recently used; and the list of evictions."""
    evictions: list[list[int]] = []
    pool = BlockPool(num_blocks, evicted=lambda blocks: evictions.append(list(blocks)))
    blocks = pool.take_many(num_blocks)
    for block in blocks:
        pool.keep([block])
    pool.give(sorted(blocks))
    return pool, evictions


def test_every_block_but_the_null_block_is_handed_out_once() -> None:
    pool = BlockPool(5)
    assert sorted(pool.take_many(5)) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0


def test_taking_from_an_empty_pool_raises() -> None:
    pool = BlockPool(2)
    pool.take_many(2)
    with pytest.raises(RuntimeError, match="than are free"):
        pool.take()
    pool.check_invariants()


def test_taking_more_than_is_free_raises_and_changes_nothing() -> None:
    pool, evictions = cached_pool(3)
    with pytest.raises(RuntimeError, match="1 blocks more"):
        pool.take_many(4)
    assert pool.num_free == 3
    assert evictions == []
    pool.check_invariants()


def test_taking_no_block_takes_none() -> None:
    pool = BlockPool(3)
    assert pool.take_many(0) == []
    assert pool.num_free == 3


def test_a_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.share([block])
    pool.give([block])
    assert pool.num_free == 0
    pool.give([block])
    assert pool.num_free == 1


@pytest.mark.parametrize("block", [0, 1])
def test_giving_back_what_nobody_holds_raises(block: int) -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match=f"block {block} is given back"):
        pool.give([block])
    pool.check_invariants()


def test_C08_an_id_twice_in_one_give_raises_and_frees_it_once() -> None:
    pool = BlockPool(4)
    first, second = pool.take_many(2)
    pool.keep([first])
    with pytest.raises(RuntimeError):
        pool.give([first, second, second])
    assert pool.num_free == 4
    pool.check_invariants()


def test_plain_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4)
    first, second = pool.take_many(2)
    pool.keep([first])
    pool.give([first, second])
    assert set(pool.take_many(3)) == {second, 3, 4}
    assert pool.take() == first


def test_cached_blocks_are_evicted_in_the_order_they_became_free() -> None:
    pool, evictions = cached_pool(3)
    assert [pool.take(), pool.take(), pool.take()] == [1, 2, 3]
    assert evictions == [[1], [2], [3]]


def test_sharing_a_free_block_takes_it_out_of_the_middle_and_makes_it_newest() -> None:
    pool, evictions = cached_pool(4)
    pool.share([2])
    assert pool.num_free == 3
    pool.give([2])
    assert pool.take_many(4) == [1, 3, 4, 2]
    assert evictions == [[1, 3, 4, 2]]


def test_sharing_a_plain_free_block_raises() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="block 1 is neither held nor cached"):
        pool.share([1])


def test_an_evicted_block_is_plain() -> None:
    pool, _ = cached_pool(2)
    pool.give([pool.take()])
    assert pool.take() == 1


def test_a_dropped_free_block_is_taken_first() -> None:
    pool, evictions = cached_pool(3)
    pool.drop(2)
    assert pool.take() == 2
    assert evictions == []
    pool.check_invariants()


def test_a_free_block_cannot_be_kept() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="block 1 is to be kept"):
        pool.keep([1])


class NaivePool:
    """What BlockPool should do, with a list per tier."""

    def __init__(self, num_blocks: int) -> None:
        self.refs = dict.fromkeys(range(1, num_blocks + 1), 0)
        self.cached: set[int] = set()
        self.lru: list[int] = []
        self.plain = set(self.refs)

    def took(self, blocks: list[int]) -> None:
        """Check that these were the right ones to take."""
        for block in blocks:
            if self.plain:
                self.plain.remove(block)
            else:
                assert block == self.lru.pop(0)
                self.cached.discard(block)
            self.refs[block] = 1

    def share(self, block: int) -> None:
        """Hold once more."""
        if not self.refs[block]:
            self.lru.remove(block)
        self.refs[block] += 1

    def give(self, block: int) -> None:
        """Hold once less."""
        self.refs[block] -= 1
        if not self.refs[block]:
            if block in self.cached:
                self.lru.append(block)
            else:
                self.plain.add(block)

    def drop(self, block: int) -> None:
        """Cache no more."""
        if block in self.lru:
            self.lru.remove(block)
            self.plain.add(block)
        self.cached.discard(block)


@pytest.mark.parametrize("seed", range(3))
def test_C08_ten_thousand_random_operations_keep_every_count(seed: int) -> None:
    random_ = random.Random(seed)
    num_blocks = random_.choice([1, 7, 24])
    pool, naive = BlockPool(num_blocks), NaivePool(num_blocks)
    for _ in range(10_000):
        held = [block for block, refs in naive.refs.items() if refs]
        action = random_.choice(["take", "take_many", "give", "give", "share", "keep", "keep", "drop", "wrong"])
        if action == "take" and pool.num_free:
            naive.took([pool.take()])
        elif action == "take_many":
            naive.took(pool.take_many(random_.randint(0, pool.num_free)))
        elif action == "give":
            blocks = random_.sample(held, random_.randint(0, len(held)))
            pool.give(blocks)
            for block in blocks:
                naive.give(block)
        elif action == "share" and (found := held + naive.lru):
            block = random_.choice(found)
            pool.share([block])
            naive.share(block)
        elif action == "keep" and held:
            block = random_.choice(held)
            pool.keep([block])
            naive.cached.add(block)
        elif action == "drop":
            block = random_.randint(1, num_blocks)
            pool.drop(block)
            naive.drop(block)
        elif action == "wrong" and len(held) < num_blocks:
            free = random_.choice(sorted(naive.refs.keys() - set(held)))
            with pytest.raises(RuntimeError):
                pool.give([free])
        pool.check_invariants()
        assert pool.holders()[1:] == list(naive.refs.values())
        assert pool.num_free == len(naive.plain) + len(naive.lru)

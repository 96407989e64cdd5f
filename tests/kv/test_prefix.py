"""Digests, the index and its events."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kv.prefix import BlockRemoved, BlockStored, KVEvent, PrefixIndex, block_hasher, hash_blocks, root_digest

ROOT = root_digest(None)


def token_ids(count: int, first: int = 0) -> np.ndarray:
    """Return so many different ids."""
    return np.arange(first, first + count, dtype=np.int32)


def test_a_digest_covers_parent_and_tokens() -> None:
    first, second = hash_blocks(ROOT, (), token_ids(8), 4)
    assert first == hashlib.sha256(ROOT + bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])).digest()
    assert second == hashlib.sha256(first + token_ids(4, 4).tobytes()).digest()


@pytest.mark.parametrize(("count", "full"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_are_hashed(count: int, full: int) -> None:
    assert len(hash_blocks(ROOT, (), token_ids(count), 4)) == full


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(1, 5), st.integers(0, 8))
def test_known_digests_are_extended_to_the_same_chain(ids: list[int], block_size: int, num_known: int) -> None:
    tokens = np.array(ids, np.int32)
    whole = hash_blocks(ROOT, (), tokens, block_size)
    assert hash_blocks(ROOT, whole[:num_known], tokens, block_size) == whole


def test_more_digests_than_tokens_are_cut() -> None:
    whole = hash_blocks(ROOT, (), token_ids(8), 4)
    assert hash_blocks(ROOT, whole, token_ids(7), 4) == whole[:1]


def test_a_strided_or_wider_array_hashes_like_its_values() -> None:
    wide = np.arange(16, dtype=np.int64)
    assert hash_blocks(ROOT, (), wide[::2], 4) == hash_blocks(ROOT, (), np.arange(0, 16, 2, dtype=np.int32), 4)


def test_the_hasher_carries_its_block_size() -> None:
    assert block_hasher(4)(ROOT, [], token_ids(9)) == hash_blocks(ROOT, (), token_ids(9), 4)


def test_C03_no_two_of_salt_and_adapter_share_a_root() -> None:
    values = (None, "", "a", "b", "\x00", "\ud800", "salt", "adapter")
    pairs = list(itertools.product(values, repeat=2))
    assert len({root_digest(salt, adapter) for salt, adapter in pairs}) == len(pairs)


def test_C03_a_root_is_the_same_in_every_process_and_a_whole_digest() -> None:
    expected = hashlib.sha256(b"salt\x01\x01\x00\x00\x00\x00\x00\x00\x00aadapter\x00").digest()
    assert root_digest("a") == expected


def test_the_longest_known_start_is_found() -> None:
    index = PrefixIndex(9)
    index.add([5], [b"a"])
    index.add([3], [b"b"])
    index.add([4], [b"d"])
    assert index.find([b"a", b"b", b"c", b"d"]) == [5, 3]
    assert index.find([b"x", b"a"]) == []


def test_blocks_of_equal_content_are_removed_one_at_a_time() -> None:
    for order in itertools.permutations((1, 2, 3)):
        index = PrefixIndex(9)
        for block in (1, 2, 3):
            index.add([block], [b"a"])
        left = {1, 2, 3}
        for block in order:
            assert index.known([b"a", b"b"])[0] in left
            index.remove([block])
            left.remove(block)
            index.check_invariants()
        assert index.known([b"a"]) == []
        assert len(index) == 0


def test_a_block_has_one_digest_at_a_time() -> None:
    index = PrefixIndex(9)
    index.add([1], [b"a"])
    with pytest.raises(RuntimeError, match="block 1 is registered already"):
        index.add([1], [b"b"])
    with pytest.raises(RuntimeError, match="block 2 isn't registered"):
        index.remove([2])


def test_each_change_is_told_with_group_block_and_digest() -> None:
    events: list[KVEvent] = []
    index = PrefixIndex(9, group=2, listener=events.append)
    index.add([1], [b"a"])
    index.add([2], [b"a"])
    index.remove([1])
    assert events == [BlockStored(2, 1, b"a"), BlockStored(2, 2, b"a"), BlockRemoved(2, 1, b"a")]

"""BlockGroup: the blocks of layers that share one block table, with pool and prefix index changed together."""

from collections.abc import Sequence

from headrace.kv.pool import BlockPool
from headrace.kv.prefix import Listener, PrefixIndex


class BlockGroup:
    """Blocks of one KV group. A block is cached in the pool exactly while it is in the index. Owner: PagedKV."""

    def __init__(self, num_blocks: int, group: int, listener: Listener | None = None) -> None:
        self.index = PrefixIndex(num_blocks, group, listener)
        self.pool = BlockPool(num_blocks, evicted=self.index.remove)

    def has_room(self, hits: Sequence[int], num_new: int) -> bool:
        """Tell whether `bind` can be done: hits that are free now are no room for new blocks."""
        revived = sum(not self.pool.is_held(block) for block in hits)
        return num_new <= self.pool.num_free - revived

    def bind(self, hits: Sequence[int], num_new: int) -> list[int]:
        """Hold these cached blocks and so many new ones; returns them all in this order."""
        self.pool.share(hits)
        return [*hits, *self.pool.take_many(num_new)]

    def register(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Cache held blocks. Free blocks of the same content make way: one copy nobody uses is enough."""
        for twin in self.index.known(digests):
            if not self.pool.is_held(twin):
                self.unregister(twin)
        self.index.add(blocks, digests)
        self.pool.keep(blocks)

    def unregister(self, block: int) -> None:
        """Cache a block no longer."""
        self.index.remove((block,))
        self.pool.drop(block)

    def clear(self) -> None:
        """Cache nothing any more. Held blocks stay held."""
        for block, digest in enumerate(self.index.digests):
            if digest is not None:
                self.pool.drop(block)
        self.index.clear()

    def check_invariants(self, holders: Sequence[int]) -> None:
        """Raise AssertionError if pool and index contradict each other or `holders` (of each block, from 0 on)."""
        self.pool.check_invariants()
        self.index.check_invariants()
        assert self.pool.holders() == list(holders), "reference counts are not the number of rows that refer to a block"
        for block, digest in enumerate(self.index.digests):
            assert self.pool.is_cached(block) == (digest is not None), f"pool and index differ on block {block}"

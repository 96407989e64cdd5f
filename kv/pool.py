"""BlockPool: which blocks are free, how many hold each of the others, and which free block is taken next.

No hashes (prefix.py) and no tables (paged.py). Lists of ints and no object per block: this is the manager's hot path.
"""

from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Reference counts and free blocks of one KV group; ids are 1 to num_blocks. Owner: the KV manager.

    Free blocks lie in two tiers. Plain ones, whose content nobody can find, are on a stack and taken first. Cached ones
    are on a list, least recently used first, linked through two arrays in which the null block 0 is both ends; each can
    be taken out of the middle in constant time. A block is cached from `keep` to `drop`, or until it is evicted.

    Breaking the rules (taking from an empty pool, giving back what nobody holds) raises RuntimeError.
    """

    def __init__(self, num_blocks: int, evicted: Callable[[Sequence[int]], None] | None = None) -> None:
        """Start with all blocks free and plain; `evicted` is told of cached blocks that are taken for new content."""
        self.num_blocks = num_blocks
        self.refs = [0] * (num_blocks + 1)
        """Holders of each block; 0 is free. Read only."""
        self._evicted = evicted
        self._cached = [False] * (num_blocks + 1)
        self._plain = list(range(num_blocks, 0, -1))
        self._newer = [0] * (num_blocks + 1)
        self._older = [0] * (num_blocks + 1)
        self._num_listed = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._plain) + self._num_listed

    def take(self) -> int:
        """Hand out one free block for new content: a plain one, else the least recently used."""
        block = self._plain.pop() if self._plain else self._evict(1)[0]
        self.refs[block] = 1
        return block

    def take_many(self, count: int) -> list[int]:
        """Hand out `count` free blocks, or raise and change nothing."""
        plain, refs = self._plain, self.refs
        start = len(plain) - count
        if start < 0:
            blocks = plain[::-1] + self._evict(-start)
            plain.clear()
        else:
            blocks = plain[start:]
            blocks.reverse()
            del plain[start:]
        for block in blocks:
            refs[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of these blocks, which are held or cached; free ones leave the list."""
        refs = self.refs
        for block in blocks:
            if not refs[block]:
                self._unlink(block)
            refs[block] += 1

    def give(self, blocks: Iterable[int]) -> None:
        """Take a holder from each of these blocks; of those that become free, the first is the first to be evicted."""
        refs, cached, plain = self.refs, self._cached, self._plain
        listed = []
        for block in blocks:
            if refs[block] == 1:
                refs[block] = 0
                if cached[block]:
                    listed.append(block)
                else:
                    plain.append(block)
            elif refs[block]:
                refs[block] -= 1
            else:
                self._link(listed)
                raise RuntimeError(f"block {block} is given back, but nobody holds it")
        if listed:
            self._link(listed)

    def keep(self, blocks: Iterable[int]) -> None:
        """Mark held blocks as cached: once free, they are taken after all plain ones."""
        refs, cached = self.refs, self._cached
        for block in blocks:
            if not refs[block]:
                raise RuntimeError(f"block {block} is to be kept, but nobody holds it")
            cached[block] = True

    def drop(self, block: int) -> None:
        """Undo `keep`: a free block becomes a plain one."""
        if self._cached[block] and not self.refs[block]:
            self._unlink(block)
            self._plain.append(block)
        self._cached[block] = False

    def is_cached(self, block: int) -> bool:
        """Tell whether a block, held or free, is cached."""
        return self._cached[block]

    def check_invariants(self) -> None:
        """Raise AssertionError if a block is lost, free twice, or in the wrong tier. For tests."""
        listed: list[int] = []
        block = self._newer[0]
        while block and len(listed) <= self.num_blocks:
            listed.append(block)
            assert self._older[self._newer[block]] == block, f"links around block {block} contradict each other"
            block = self._newer[block]
        assert len(listed) == self._num_listed, f"{len(listed)} blocks are listed, {self._num_listed} counted"
        assert all(self._cached[block] for block in listed), "a plain block is listed"
        assert not any(self._cached[block] for block in self._plain), "a cached block is on the stack"
        free = [block for block in range(1, self.num_blocks + 1) if self.refs[block] == 0]
        assert sorted(listed + self._plain) == free, "the free blocks are not those that nobody holds, each once"
        assert self.refs[0] == min(self.refs) == 0, "a count is negative, or the null block is held"

    def _link(self, blocks: list[int]) -> None:
        newer, older = self._newer, self._older
        newest = older[0]
        for block in blocks:
            newer[newest] = block
            older[block] = newest
            newest = block
        newer[newest] = 0
        older[0] = newest
        self._num_listed += len(blocks)

    def _unlink(self, block: int) -> None:
        if not self._cached[block]:
            raise RuntimeError(f"block {block} is neither held nor cached")
        before, after = self._older[block], self._newer[block]
        self._newer[before] = after
        self._older[after] = before
        self._num_listed -= 1

    def _evict(self, count: int) -> list[int]:
        if count > self._num_listed:
            raise RuntimeError(f"{count - self._num_listed} blocks more are asked for than are free")
        newer, cached = self._newer, self._cached
        blocks = []
        block = newer[0]
        for _ in range(count):
            blocks.append(block)
            cached[block] = False
            block = newer[block]
        newer[0] = block
        self._older[block] = 0
        self._num_listed -= count
        if self._evicted:
            self._evicted(blocks)
        return blocks

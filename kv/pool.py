"""BlockPool: which blocks are free, how many hold each of the others, and which free block is taken next.

No hashes (prefix.py) and no tables (paged.py). Lists of ints and no object per block: this is the manager's hot path.
"""

from collections.abc import Callable, Iterable, Sequence

_CACHED, _HELD = 1, 2


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
        self._evicted = evicted
        self._states = [0] * (num_blocks + 1)
        """Of each block, its holders times _HELD, plus _CACHED if it is."""
        self._plain = list(range(num_blocks, 0, -1))
        self._newer = [0] * (num_blocks + 1)
        self._older = [0] * (num_blocks + 1)
        self._num_listed = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._plain) + self._num_listed

    def is_held(self, block: int) -> bool:
        """Tell whether anybody holds a block."""
        return self._states[block] >= _HELD

    def is_held_once(self, block: int) -> bool:
        """Tell whether exactly one holds a block."""
        return self._states[block] // _HELD == 1

    def is_cached(self, block: int) -> bool:
        """Tell whether a block, held or free, is cached."""
        return self._states[block] % _HELD == _CACHED

    def holders(self) -> list[int]:
        """Count the holders of each block, from 0 on."""
        return [state // _HELD for state in self._states]

    def take(self) -> int:
        """Hand out one free block for new content: a plain one, else the least recently used."""
        block = self._plain.pop() if self._plain else self._evict(1)[0]
        self._states[block] = _HELD
        return block

    def take_many(self, count: int) -> list[int]:
        """Hand out `count` free blocks, or raise and change nothing."""
        plain, states, held = self._plain, self._states, _HELD
        start = len(plain) - count
        if start < 0:
            blocks = plain[::-1] + self._evict(-start)
            plain.clear()
        else:
            blocks = plain[start:]
            blocks.reverse()
            del plain[start:]
        for block in blocks:
            states[block] = held
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of these blocks, which are held or cached; free ones leave the list."""
        states = self._states
        for block in blocks:
            if states[block] < _HELD:
                self._unlink(block)
            states[block] += _HELD

    def give(self, blocks: Iterable[int]) -> None:
        """Take a holder from each of these blocks; of those that become free, the first is the first to be evicted."""
        states, plain, held = self._states, self._plain, _HELD
        listed: list[int] = []
        for block in blocks:
            state = states[block]
            if state == held:
                states[block] = 0
                plain.append(block)
            elif state < held:
                self._link(listed)
                raise RuntimeError(f"block {block} is given back, but nobody holds it")
            else:
                states[block] = state = state - held
                if state == _CACHED:
                    listed.append(block)
        if listed:
            self._link(listed)

    def keep(self, blocks: Iterable[int]) -> None:
        """Mark held blocks as cached: once free, they are taken after all plain ones."""
        states = self._states
        for block in blocks:
            if states[block] < _HELD:
                raise RuntimeError(f"block {block} is to be kept, but nobody holds it")
            states[block] |= _CACHED

    def drop(self, block: int) -> None:
        """Undo `keep`: a free block becomes a plain one."""
        if self._states[block] == _CACHED:
            self._unlink(block)
            self._plain.append(block)
        self._states[block] &= ~_CACHED

    def check_invariants(self) -> None:
        """Raise AssertionError if a block is lost, free twice, or in the wrong tier. For tests."""
        listed: list[int] = []
        block = self._newer[0]
        while block and len(listed) <= self.num_blocks:
            listed.append(block)
            assert self._older[self._newer[block]] == block, f"links around block {block} contradict each other"
            block = self._newer[block]
        assert len(listed) == self._num_listed, f"{len(listed)} blocks are listed, {self._num_listed} counted"
        assert all(self.is_cached(block) for block in listed), "a plain block is listed"
        assert not any(self.is_cached(block) for block in self._plain), "a cached block is on the stack"
        free = [block for block in range(1, self.num_blocks + 1) if not self.is_held(block)]
        assert sorted(listed + self._plain) == free, "the free blocks are not those that nobody holds, each once"
        assert self._states[0] == min(self._states) == 0, "a count is negative, or the null block is held"

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
        if not self.is_cached(block):
            raise RuntimeError(f"block {block} is neither held nor cached")
        before, after = self._older[block], self._newer[block]
        self._newer[before] = after
        self._older[after] = before
        self._num_listed -= 1

    def _evict(self, count: int) -> list[int]:
        if count > self._num_listed:
            raise RuntimeError(f"{count - self._num_listed} blocks more are asked for than are free")
        newer, states = self._newer, self._states
        blocks = []
        block = newer[0]
        for _ in range(count):
            blocks.append(block)
            states[block] = 0
            block = newer[block]
        newer[0] = block
        self._older[block] = 0
        self._num_listed -= count
        if self._evicted:
            self._evicted(blocks)
        return blocks

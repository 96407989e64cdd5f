"""SimpleKV: the least a KV manager can be, and the example to start one's own from. No prefix cache."""

from typing import Self

from headrace.core.columns import Ints, pack_ints
from headrace.core.interfaces import BlockKeys, KVStats
from headrace.core.providers import CoreContext
from headrace.kv.layout import blocks_for


class SimpleKV:
    """KVManager with one list of free blocks, which every KV group uses alike. Owner: the scheduler."""

    def __init__(self, num_blocks: int, block_size: int, num_groups: int = 1) -> None:
        self.block_size = block_size
        self._num_blocks = num_blocks
        self._num_groups = num_groups
        self._free = list(range(num_blocks, 0, -1))
        self._blocks: dict[int, list[int]] = {}
        """By bound row, its blocks in the order of its tokens."""
        self._changes: list[tuple[int, int, int]] = []
        """Row, index, block: what the runner doesn't know yet."""

    @classmethod
    def from_context(cls, context: CoreContext, options: None = None) -> Self:
        """Build what the engine's config and the runner's facts ask for; there are no options."""
        groups = context.facts.groups
        return cls(min(group.num_blocks for group in groups), context.config.block_size, len(groups))

    def max_tokens(self) -> int:
        """Most tokens that one request alone can hold."""
        return self._num_blocks * self.block_size

    def match(self, keys: BlockKeys, num_tokens: int) -> int:
        """Find nothing: nothing is cached."""
        return 0

    def admit(self, row: int, keys: BlockKeys, num_tokens: int, read_cache: bool, resumed: bool) -> int | None:
        """Bind blocks for `num_tokens` tokens to a free row. None: blocks are lacking, nothing changed."""
        if row in self._blocks:
            raise RuntimeError(f"row {row} is admitted, but still bound")
        self._blocks[row] = []
        if self.grow(row, num_tokens):
            return 0
        del self._blocks[row]
        return None

    def grow(self, row: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all. False: blocks are lacking, nothing changed."""
        blocks = self._blocks[row]
        needed = blocks_for(num_tokens, self.block_size)
        if needed - len(blocks) > len(self._free):
            return False
        while len(blocks) < needed:
            self._changes.append((row, len(blocks), self._free[-1]))
            blocks.append(self._free.pop())
        return True

    def commit(self, row: int, num_tokens: int) -> None:
        """Register nothing."""

    def release(self, row: int, token_ids: Ints) -> None:
        """Give the row's blocks back."""
        self._free += reversed(self._blocks.pop(row))
        self._changes = [change for change in self._changes if change[0] != row]

    def withdraw(self, row: int) -> list[int]:
        """Find no other rows: none share blocks."""
        return []

    def take_changes(self) -> bytes:
        """Return and forget block table changes since the last call: int32 (n, 4) of group, row, index, block id."""
        changes, self._changes = self._changes, []
        columns = [number for group in range(self._num_groups) for change in changes for number in (group, *change)]
        return pack_ints(columns)

    def reset(self) -> None:
        """Forget nothing: nothing is cached."""

    def stats(self) -> KVStats:
        """Count blocks."""
        return KVStats(self._num_blocks, len(self._free))

    def check_invariants(self) -> None:
        """Raise AssertionError unless each block is free once or has one owner. For tests."""
        owned = [block for blocks in self._blocks.values() for block in blocks]
        assert sorted(owned + self._free) == list(range(1, self._num_blocks + 1)), "a block is lost or doubled"

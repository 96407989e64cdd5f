"""PagedKV, the default KV manager: block tables over reference-counted blocks, with prefix caching.

Decides only: no tensors, no clock, no waiting. The runner mirrors its tables from `take_changes`.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Ints
from headrace.core.interfaces import BlockKeys, KVStats
from headrace.core.providers import CoreContext
from headrace.kv.group import BlockGroup
from headrace.kv.layout import StepLimits, blocks_for
from headrace.kv.prefix import CacheCleared, Listener, block_hasher
from headrace.kv.window import WindowGroup

_ONE = np.array(1, np.int32)
NO_LIMITS = StepLimits(max_chunk=np.iinfo(np.int32).max)


@dataclass(slots=True)
class _Row:
    """A row's latest request. Blocks: num_hit cached ones, then its own, of which the first are registered."""

    keys: BlockKeys
    num_hit: int
    num_registered: int
    """Leading blocks that are registered, the hit ones included."""
    registers: bool
    """False: caching is off, or a withdrawal or reset forbids to register more."""
    is_bound: bool = True
    is_withdrawn: bool = False


class PagedKV:
    """KVManager with one block pool and one prefix index per KV group. Owner: the scheduler.

    A hit is the longest prefix that all groups accept: those with a sliding window need only what a query behind it
    sees. They hold a row's blocks for its window and its next chunk only; what no query of the step being made sees any
    more goes back when the row gets new ones. Blocks are free as soon as they are given back, because steps run in
    order; rows are the scheduler's to fence. A method called for a row in the wrong state raises RuntimeError.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        max_rows: int,
        max_blocks: int,
        enable_prefix_caching: bool = True,
        listener: Listener | None = None,
        windows: Sequence[int | None] | None = None,
        limits: StepLimits = NO_LIMITS,
    ) -> None:
        """Start empty.

        num_blocks: usable blocks of each group. max_blocks: most blocks of one row. windows: of each group, in tokens.
        limits: what one step computes of a row, for groups with a window.
        listener: gets every change of the prefix index, in an order that lets it rebuild the index.
        """
        self.block_size = block_size
        self.tables = np.zeros((len(num_blocks), max_rows, max_blocks), np.int32)
        """(num_groups, max_rows, max_blocks), block ids; of a row only the blocks that it holds count. Read only."""
        self._most_blocks = np.array(max_blocks, np.int32)
        windows = windows or [None] * len(num_blocks)
        sizes = zip(num_blocks, self.tables, windows, strict=True)
        self._groups = [
            BlockGroup(count, number, table, listener)
            if window is None
            else WindowGroup(count, number, table, window, block_size, limits, listener)
            for number, (count, table, window) in enumerate(sizes)
        ]
        self._has_windows = any(windows)
        self._scheduled = np.zeros(max_rows, np.int32)
        """Tokens of each row that steps before the one being made compute, or fewer; kept where there are windows."""
        self._rows: list[_Row | None] = [None] * max_rows
        self._num_blocks = np.zeros(max_rows, np.int32)
        """Blocks that the tokens of each bound row fill; with a window, it may hold fewer."""
        self._changes = array("i")
        """Table changes since take_changes, four numbers each: group, row, index, block id."""
        self._caching = enable_prefix_caching
        self._listener = listener
        self._hasher = block_hasher(block_size)
        self._queries = self._hits = self._resume_hits = 0

    @classmethod
    def from_context(cls, context: CoreContext, options: None = None) -> Self:
        """Build what the engine's config and the runner's facts ask for; there are no options."""
        config, facts = context.config, context.facts
        return cls(
            num_blocks=[group.num_blocks for group in facts.groups],
            windows=[group.window for group in facts.groups],
            limits=StepLimits.of(config),
            block_size=config.block_size,
            max_rows=context.max_rows,
            max_blocks=blocks_for(facts.max_model_len + 1, config.block_size),
            enable_prefix_caching=config.enable_prefix_caching,
        )

    def max_tokens(self) -> int:
        """Most tokens that one request alone can have."""
        return min(group.max_blocks() for group in self._groups) * self.block_size

    def match(self, keys: BlockKeys, num_tokens: int) -> int:
        """Count tokens of a sequence of `num_tokens` that the cache holds: whole blocks, never all of it. No change."""
        return self._count_hit(keys, num_tokens) * self.block_size

    def admit(self, row: int, keys: BlockKeys, num_tokens: int, read_cache: bool, resumed: bool) -> int | None:
        """Bind blocks for `num_tokens` tokens to a free row, cached ones first.

        Returns the number of cached tokens (what `match` said), or None if blocks are lacking: then nothing changed.
        Groups with a window get blocks for the first chunk; before each later one, `grow` must be called.
        """
        state = self._rows[row]
        if state is not None and state.is_bound:
            raise RuntimeError(f"row {row} is admitted, but still bound")
        needed = self._blocks_for(num_tokens)
        num_hit = self._count_hit(keys, num_tokens if read_cache else 0)
        hits = [group.hit(keys.digests, num_hit) for group in self._groups]
        counts = [group.num_first(num_hit, needed) for group in self._groups]
        wanted = list(zip(self._groups, hits, counts, strict=True))
        if not all(group.has_room(hit, count) for group, hit, count in wanted):
            return None
        for number, (group, hit, count) in enumerate(wanted):
            indices = np.arange(num_hit - len(hit), num_hit + count)
            self._note(number, row, indices, group.bind(row, num_hit, hit, count))
        self._num_blocks[row] = needed
        self._scheduled[row] = num_hit * self.block_size
        self._rows[row] = _Row(keys, num_hit, num_hit, registers=self._caching)
        if self._caching and read_cache:
            self._count(num_tokens, num_hit * self.block_size, resumed)
        return num_hit * self.block_size

    def grow(self, row: int, num_tokens: int) -> bool:
        """Make room to compute up to `num_tokens` tokens in all. False: blocks are lacking, nothing changed."""
        self._bound(row)
        held = int(self._num_blocks[row])
        is_within = num_tokens <= held * self.block_size
        if is_within and not self._has_windows:
            return True
        needed = held if is_within else self._blocks_for(num_tokens)
        if not self._extend(row, held, needed, num_tokens):
            return False
        if not is_within:
            self._num_blocks[row] = needed
            self._scheduled[row] = num_tokens
        return True

    def add_blocks(self, rows: NDArray[np.intp]) -> bool:
        """Add a block to each of these rows, in their order. False: blocks are lacking, nothing changed."""
        held = self._num_blocks[rows]
        if np.count_nonzero(held) < len(rows):
            raise RuntimeError(f"one of the rows {rows.tolist()} is not bound")
        if np.count_nonzero(held == self._most_blocks):
            raise RuntimeError(f"one of the rows {rows.tolist()} holds {self._most_blocks} blocks, which is the most")
        if not all(group.has_room_for_each(rows, held) for group in self._groups):
            return False
        for number, group in enumerate(self._groups):
            self._note(number, rows, held, group.extend_each(rows, self._scheduled))
        self._num_blocks[rows] = held + _ONE
        if self._has_windows:
            self._scheduled[rows] = held * self.block_size + 1
        return True

    def commit(self, row: int, num_tokens: int) -> None:
        """Register the row's full, hashed blocks among its first `num_tokens` tokens: their steps are scheduled."""
        state = self._bound(row)
        if self._has_windows and num_tokens > self._scheduled[row]:
            self._scheduled[row] = num_tokens
        digests = state.keys.digests
        first = state.num_registered
        end = min(num_tokens // self.block_size, len(digests), int(self._num_blocks[row]))
        if end <= first or not state.registers:
            return
        for group in self._groups:
            group.register(row, first, end, digests)
        state.num_registered = end

    def release(self, row: int, token_ids: Ints) -> None:
        """Give the row's blocks back, tail first; full blocks of `token_ids`, whose K/V are sound, get registered.

        Extends the digests of the request's keys over them.
        """
        state = self._bound(row)
        if state.registers:
            digests = state.keys.digests
            if len(token_ids) // self.block_size > len(digests):
                digests[:] = self._hasher(state.keys.root, digests, token_ids)
            self.commit(row, len(token_ids))
        for group in self._groups:
            group.pool.give(group.blocks(row, int(self._num_blocks[row]))[::-1])
        state.is_bound = False
        self._num_blocks[row] = 0
        if self._changes:
            changes = np.array(self._changes, np.int32).reshape(-1, 4)
            self._changes = array("i", changes[changes[:, 1] != row].tobytes())

    def withdraw(self, row: int) -> list[int]:
        """Unregister what this row registered; returns other rows that hit those blocks and must recompute.

        Goes on to what those rows registered themselves, and to the rows that hit that. A row that is bound stays
        bound; its next release registers nothing. A released row can be withdrawn until it is admitted again, because
        the failure of a step may become known after the request lost its row. Each row is returned once: withdrawing
        it in its turn does nothing.
        """
        found = []
        todo = [row]
        while todo:
            source = todo.pop()
            state = self._rows[source]
            if state is None or state.is_withdrawn:
                continue
            self._unregister(source, state)
            if state.is_bound and source != row:
                found.append(source)
            todo += [other for other, its in enumerate(self._rows) if its and self._has_hit(other, its, source, state)]
        return found

    def take_changes(self) -> bytes:
        """Return and forget block table changes since the last call: int32 (n, 4) of group, row, index, block id."""
        changes, self._changes = self._changes, array("i")
        return changes.tobytes()

    def reset(self) -> None:
        """Forget every cached block. Blocks in use stay in use, but are registered no more."""
        for group in self._groups:
            group.clear()
        self._rows = [state if state and state.is_bound else None for state in self._rows]
        for state in self._rows:
            if state:
                state.registers = False
        if self._listener:
            self._listener(CacheCleared())

    def stats(self) -> KVStats:
        """Read the counters; blocks are summed over groups."""
        return KVStats(
            num_blocks=sum(group.pool.num_blocks for group in self._groups),
            num_free=sum(group.pool.num_free for group in self._groups),
            queries=self._queries,
            hits=self._hits,
            resume_hits=self._resume_hits,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if blocks are lost, doubled or miscounted. For tests."""
        bound = [(row, state) for row, state in enumerate(self._rows) if state and state.is_bound]
        for row, state in bound:
            assert state.num_hit <= state.num_registered <= self._num_blocks[row], (
                f"row {row} counts its blocks wrongly"
            )
        assert set(self._changes[1::4]) <= {row for row, _ in bound}, "a row that isn't bound has changes to report"
        for group in self._groups:
            held = Counter(block for row, _ in bound for block in group.blocks(row, int(self._num_blocks[row])))
            group.check_invariants([held[block] for block in range(group.pool.num_blocks + 1)])
            assert held.total() == sum(group.pool.holders()), "a table has a block that isn't one"

    def _count_hit(self, keys: BlockKeys, num_tokens: int) -> int:
        """Count the blocks of a sequence's hit: as many as all groups accept, fewer than the sequence needs."""
        most = max(0, num_tokens - 1) // self.block_size if self._caching else 0
        count = min(most, len(keys.digests))
        while True:
            before = count
            for group in self._groups:
                count = group.longest_hit(keys.digests, count)
            if count == before or not self._has_windows:
                return count

    def _extend(self, row: int, held: int, needed: int, num_tokens: int) -> bool:
        """Give a row of `held` blocks those that it lacks; what has left a window makes room for them."""
        scheduled = int(self._scheduled[row])
        wanted = []
        for group in self._groups:
            count = group.num_lacking(row, held, needed, num_tokens)
            wanted.append((group, count, group.leaving(row, scheduled) if count else []))
        if not all(group.has_room((), count, leaving) for group, count, leaving in wanted):
            return False
        for number, (group, count, leaving) in enumerate(wanted):
            if count:
                end = group.end(row, held)
                blocks = group.extend(row, leaving, count)
                if count == 1:
                    self.tables[number, row, end] = blocks[0]
                    self._changes.extend((number, row, end, blocks[0]))
                else:
                    self._note(number, row, np.arange(end, end + count), blocks)
        return True

    def _note(
        self, group: int, rows: NDArray[np.intp] | int, indices: NDArray[np.integer], blocks: Sequence[int]
    ) -> None:
        """Put blocks into a group's tables, and remember it for the runner."""
        changes = np.empty((len(blocks), 4), np.int32)
        changes[:, 0] = group
        changes[:, 1] = rows
        changes[:, 2] = indices
        changes[:, 3] = blocks
        self.tables[group, rows, indices] = changes[:, 3]
        self._changes.frombytes(changes.tobytes())

    def _bound(self, row: int) -> _Row:
        state = self._rows[row]
        if state is None or not state.is_bound:
            raise RuntimeError(f"row {row} is not bound")
        return state

    def _blocks_for(self, num_tokens: int) -> int:
        needed = blocks_for(num_tokens, self.block_size)
        if needed > self.tables.shape[2]:
            raise RuntimeError(f"{num_tokens} tokens are asked for, a row holds at most {self.max_tokens()}")
        return needed

    def _count(self, num_tokens: int, num_cached: int, resumed: bool) -> None:
        if resumed:
            self._resume_hits += num_cached
        else:
            self._queries += num_tokens
            self._hits += num_cached

    def _unregister(self, row: int, state: _Row) -> None:
        """Unregister a row's own blocks, as far as they still hold its content."""
        state.is_withdrawn = True
        state.registers = False
        own = slice(state.num_hit, state.num_registered)
        for table, group in zip(self.tables[:, row], self._groups, strict=True):
            for block, digest in zip(table[own].tolist(), state.keys.digests[own], strict=True):
                if group.index.digests[block] == digest:
                    group.unregister(block)

    def _has_hit(self, row: int, state: _Row, source: int, registrant: _Row) -> bool:
        """Tell whether `row` hit a block that `source` registered: same block, same content, so at the same index."""
        shared = range(registrant.num_hit, min(registrant.num_registered, state.num_hit))
        return any(
            state.keys.digests[index] == registrant.keys.digests[index]
            and (self.tables[:, row, index] == self.tables[:, source, index]).any()
            for index in shared
        )

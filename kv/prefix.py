"""Prefix caching: what names a block's content, which blocks hold it, and the events that tell others.

A block's name is a chained digest: sha256 of its parent's digest and its own token ids, so that equal digests mean
equal tokens from the start of the sequence on. The chain starts at a root that covers what else separates sequences.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from headrace.core.columns import Ints

Hasher = Callable[[bytes, Sequence[bytes], Ints], list[bytes]]
"""hasher(root, digests, token_ids) -> digests of all full blocks of token_ids; `digests` are those known already."""


def root_digest(salt: str | None, adapter: str | None = None) -> bytes:
    """Start a chain: sequences share cached blocks only where salt and adapter are the same; None and "" differ."""
    return hashlib.sha256(_tagged(b"salt", salt) + _tagged(b"adapter", adapter)).digest()


def _tagged(name: bytes, value: str | None) -> bytes:
    if value is None:
        return name + b"\x00"
    content = value.encode("utf-8", "surrogatepass")
    return name + b"\x01" + len(content).to_bytes(8, "little") + content


def hash_blocks(root: bytes, digests: Sequence[bytes], token_ids: Ints, block_size: int) -> list[bytes]:
    """Return the digests of all full blocks of `token_ids`; `digests` are those of its first blocks, known already."""
    known = list(digests[: len(token_ids) // block_size])
    parent = known[-1] if known else root
    content = np.ascontiguousarray(token_ids, dtype="<i4").tobytes()
    size = 4 * block_size
    for start in range(len(known) * size, len(content) - size + 1, size):
        parent = hashlib.sha256(parent + content[start : start + size]).digest()
        known.append(parent)
    return known


def block_hasher(block_size: int) -> Hasher:
    """Make the function that names the blocks of a sequence, for the input process and the KV manager alike."""
    return partial(hash_blocks, block_size=block_size)


class BlockStored(Struct, frozen=True, tag="stored"):
    """A block can be found from now on, and stays findable until it is removed or all are cleared."""

    group: int
    block: int
    digest: bytes


class BlockRemoved(Struct, frozen=True, tag="removed"):
    """A block can't be found any more; other blocks with the same digest still can."""

    group: int
    block: int
    digest: bytes


class CacheCleared(Struct, frozen=True, tag="cleared"):
    """No block of any group can be found any more."""


KVEvent = BlockStored | BlockRemoved | CacheCleared
Listener = Callable[[KVEvent], None]
"""Gets each event right after its change, on the scheduler's thread; must return at once."""


class PrefixIndex:
    """Finds the blocks of one KV group by digest; several blocks may hold the same content. Owner: the KV manager."""

    def __init__(self, num_blocks: int, group: int = 0, listener: Listener | None = None) -> None:
        self.digests: list[bytes | None] = [None] * (num_blocks + 1)
        """Digest of each block's content; None: it can't be found. Read only."""
        self._group = group
        self._listener = listener
        self._block_of: dict[bytes, int] = {}
        self._twins: dict[bytes, list[int]] = {}
        """Further blocks of the digests that have several."""

    def __len__(self) -> int:
        """Count digests."""
        return len(self._block_of)

    def __contains__(self, digest: bytes) -> bool:
        """Tell whether a block of this digest is known."""
        return digest in self._block_of

    def known(self, digests: Iterable[bytes]) -> list[int]:
        """Return one block for each of these digests that is known."""
        block_of = self._block_of
        return [block_of[digest] for digest in digests if digest in block_of]

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Return blocks that hold the longest known start of a chain."""
        blocks = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def add(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Make blocks that aren't registered findable, each by its digest."""
        of_block, block_of = self.digests, self._block_of
        for block, digest in zip(blocks, digests, strict=True):
            if of_block[block] is not None:
                raise RuntimeError(f"block {block} is registered already")
            of_block[block] = digest
            if block_of.setdefault(digest, block) != block:
                self._twins.setdefault(digest, []).append(block)
            if self._listener:
                self._listener(BlockStored(self._group, block, digest))

    def remove(self, blocks: Iterable[int]) -> None:
        """Make these registered blocks unfindable, each on its own: twins of equal content stay."""
        for block in blocks:
            digest = self.digests[block]
            if digest is None:
                raise RuntimeError(f"block {block} isn't registered")
            self.digests[block] = None
            if digest in self._twins:
                self._remove_twin(block, digest)
            else:
                del self._block_of[digest]
            if self._listener:
                self._listener(BlockRemoved(self._group, block, digest))

    def clear(self) -> None:
        """Forget all blocks. Tells no listener: CacheCleared is for all groups at once."""
        self.digests[:] = [None] * len(self.digests)
        self._block_of.clear()
        self._twins.clear()

    def _remove_twin(self, block: int, digest: bytes) -> None:
        twins = self._twins[digest]
        if self._block_of[digest] == block:
            self._block_of[digest] = twins.pop()
        else:
            twins.remove(block)
        if not twins:
            del self._twins[digest]

    def check_invariants(self) -> None:
        """Raise AssertionError unless digests and blocks point at each other, each once."""
        held = [(block, digest) for block, digest in enumerate(self.digests) if digest is not None]
        listed = [(block, digest) for digest, block in self._block_of.items()]
        listed += [(block, digest) for digest, twins in self._twins.items() for block in twins]
        assert sorted(listed) == held, "the index points at blocks with another digest, or twice at one"
        assert all(self._twins.values()), "an empty list of twins is left"

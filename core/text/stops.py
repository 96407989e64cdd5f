"""Find stop strings in text that arrives in pieces. No tokens, no messages.

Text is read character by character, so the result never depends on how it was cut into pieces: the stop string that is
completed first wins, and of several completed by the same character the longest, which begins first.
Source: Aho and Corasick 1975, Efficient string matching.
"""

from weakref import WeakValueDictionary


class _Node:
    """A prefix of some stop string."""

    __slots__ = ("__weakref__", "depth", "fallback", "found", "next")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Characters of the prefix."""
        self.next: dict[str, _Node] = {}
        self.fallback: _Node | None = None
        """The longest proper suffix of this prefix that is a prefix too; None at the root."""
        self.found: str | None = None
        """The longest stop string that this prefix ends with."""


class StopMatcher:
    """One request's search. Owner: OutputActor.

    What it holds back is always the longest end of the text that is a proper prefix of some stop string.
    """

    def __init__(self, stops: tuple[str, ...], include_stop: bool = False) -> None:
        self._root = self._node = _automaton(stops)
        self._include_stop = include_stop
        self._held = ""
        self.hit: str | None = None
        """The stop string that was found; then there is no more text."""

    def push(self, text: str) -> str:
        """Take more text; return what can't belong to a stop string any more, or all text up to the hit."""
        if self.hit is not None:
            return ""
        node = self._node
        for index, char in enumerate(text):
            node = _step(node, char)
            if node.found is not None:
                return self._stop(node.found, self._held + text[: index + 1])
        seen = self._held + text
        self._node, cut = node, len(seen) - node.depth
        self._held = seen[cut:]
        return seen[:cut]

    def flush(self) -> str:
        """Return what is held back; the text ends here."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _stop(self, found: str, seen: str) -> str:
        self.hit, self._held = found, ""
        return seen if self._include_stop else seen[: -len(found)]


def _step(node: _Node, char: str) -> _Node:
    while char not in node.next:
        if node.fallback is None:
            return node
        node = node.fallback
    return node.next[char]


def _automaton(stops: tuple[str, ...]) -> _Node:
    """Return the tree of all prefixes, shared by those who use it now, such as the completions of one prompt."""
    root = _in_use.get(stops)
    if root is None:
        root = _in_use[stops] = _build(stops)
    return root


def _build(stops: tuple[str, ...]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for depth, char in enumerate(stop, 1):
            node = node.next.setdefault(char, _Node(depth))
        node.found = stop
    level = [(root, child, char) for char, child in root.next.items()]
    while level:
        below = []
        for parent, node, char in level:
            node.fallback = root if parent is root else _step(parent.fallback or root, char)
            node.found = node.found or node.fallback.found
            below += [(node, child, next_char) for next_char, child in node.next.items()]
        level = below
    return root


_in_use: "WeakValueDictionary[tuple[str, ...], _Node]" = WeakValueDictionary()
"""Trees of up to 65,536 nodes: a cache that outlives its users could hold gigabytes."""

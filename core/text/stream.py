"""One request's tokens become its text, up to the stop string that ends it. No messages."""

from collections.abc import Mapping, Sequence

from headrace.core.interfaces import Detokenizer
from headrace.core.messages import TextPart
from headrace.core.text.stops import StopMatcher


class TextStream:
    """One request's text so far. Owner: OutputActor.

    With stop strings, tokens are taken one at a time, so that what counts never depends on how many came at once.
    """

    __slots__ = ("_decoder", "_matcher", "_min_tokens", "_special_stops", "hit", "num_tokens")

    def __init__(self, part: TextPart, decoder: Detokenizer, special_stops: Mapping[int, str]) -> None:
        """special_stops: ids of special tokens that are stop strings themselves, though their text isn't shown."""
        self._decoder = decoder
        self._matcher = StopMatcher(part.stop, part.include_stop) if part.stop else None
        self._special_stops = special_stops
        self._min_tokens = part.min_tokens
        self.num_tokens = 0
        """Tokens that count: with a hit, those up to the one that completed it."""
        self.hit: str | None = None
        """The stop string that ended the text."""

    def push(self, token_ids: Sequence[int], is_last_silent: bool = False) -> str:
        """Take more tokens; return the text that is certain now.

        is_last_silent: the last token is the stop id that ended the request: it counts, its text is left out.
        """
        shown = token_ids[:-1] if is_last_silent else token_ids
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            return self._decoder.push(shown)
        pieces = []
        for token_id in shown:
            self.num_tokens += 1
            pieces.append(self._push_one(self._matcher, token_id))
            if self.hit is not None:
                return "".join(pieces)
        self.num_tokens += len(token_ids) - len(shown)
        return "".join(pieces)

    def finish(self) -> str:
        """Return what is held back; the text ends here. May still find a stop string."""
        if self.hit is not None:
            return ""
        rest = self._decoder.flush()
        if self._matcher is None:
            return rest
        if self.num_tokens > self._min_tokens:
            rest = self._matcher.push(rest)
            self.hit = self._matcher.hit
        return rest + self._matcher.flush()

    def _push_one(self, matcher: StopMatcher, token_id: int) -> str:
        text = self._decoder.push((token_id,))
        if self.num_tokens <= self._min_tokens:
            return text
        text = matcher.push(text)
        self.hit = matcher.hit
        if self.hit is None and token_id in self._special_stops:
            text += self.finish()
            self.hit = self.hit or self._special_stops[token_id]
        return text

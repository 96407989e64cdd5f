"""Texts that tokenizers get wrong, and slow encoders of SentencePiece models that share no code with ours."""

import math
import random
import re
from collections.abc import Sequence
from itertools import pairwise

PIECES = [
    *("Hello", " world", "the", " the", "naïve", "世界", "😀", "👩\u200d👧", "é", "e\u0301", "ﬁ", "\u00a0", "½", "٣"),
    *("0", "1234", " 42", "3.14", "\t", "\n", "\n\n", "  ", "    ", "\r\n", "a\x04b", "\x7f", "\u200b", "\ufffd"),
    *("'s", "'S", "don't", "I'll", "!?", "...", " (", ")", "_", "<|im_end|>", "<|im_start|>", "<|", "|>", "ß", "ǅ"),
    *("<s>", "</s>", "<eos>", "<start_of_turn>", "<b>", "</b>", "<0x41>", "\u2581", "\u2581\u2581", "aaaa", "abab"),
]


def texts(count: int) -> list[str]:
    """Draw texts of 1 to 12 pieces, and the empty one."""
    rng = random.Random(5)
    return ["", *("".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(count - 1))]


class SlowPieces:
    """What SentencePiece models of both kinds share: whole tokens, the space before a text, bytes.

    tokens, scores, kinds: columns of a GGUF file's vocabulary.
    prefix: a space is put before the text and after whole tokens.
    """

    def __init__(self, tokens: list[str], scores: list[float], kinds: list[int], prefix: bool) -> None:
        self.tokens, self.prefix = tokens, prefix
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.scores = {token: score for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == 1}
        whole = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)]
        self.whole = re.compile("(" + "|".join(map(re.escape, sorted(whole, key=len, reverse=True))) + ")")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(self.whole.split(text)):
            if index % 2:
                ids.append(self.ids[part])
            elif part:
                ids += self.encode_part((" " if self.prefix else "") + part)
        return ids

    def encode_part(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self.cut(text.replace(" ", "\u2581")):
            ids += [self.ids[piece]] if piece in self.ids else [self.ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return ids

    def cut(self, text: str) -> Sequence[str]:
        raise NotImplementedError


class SlowMerges(SlowPieces):
    """SentencePiece BPE: again and again joins the neighbours whose joined piece has the highest score."""

    def cut(self, text: str) -> Sequence[str]:
        parts = list(text)
        while True:
            joined = [self.scores.get(left + right, -math.inf) for left, right in pairwise(parts)]
            best = max(joined, default=-math.inf)
            if best == -math.inf:
                return parts
            at = joined.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]


class SlowUnigram(SlowPieces):
    """SentencePiece unigram: of all ways to cut the text, the one with the highest sum of scores."""

    def cut(self, text: str) -> Sequence[str]:
        unknown = min(self.scores.values()) - 10
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(text) + 1):
            ways = []
            for start in range(max(0, end - 20), end):
                score = self.scores.get(text[start:end], unknown if end - start == 1 else -math.inf)
                ways.append((best[start][0] + score, [*best[start][1], text[start:end]]))
            best.append(max(ways, key=lambda way: way[0]))
        return best[-1][1]

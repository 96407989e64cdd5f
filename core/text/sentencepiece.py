"""SentencePiece models as tokenizers of the `tokenizers` library: BPE by scores, and unigram, both with byte fallback.

Sources: Kudo and Richardson 2018, SentencePiece; Kudo 2018, Subword Regularization, section 3.2 (unigram); the rules
for spaces beside special tokens are llama.cpp's.
"""

import math
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.core.errors import ModelFileDamaged
from headrace.core.text.detokenizer import SPACE
from headrace.core.text.vocabulary import Kind, Vocabulary, add_special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_PIECE_LENGTH = 1024
"""Characters of the longest piece; longer ones are damage: a piece is cut in every way to find its merges."""


class Rules(Struct, frozen=True):
    """How a SentencePiece model reads text."""

    is_unigram: bool = False
    """The likeliest pieces, instead of merging the pair of the highest score again and again."""
    add_prefix: bool = True
    """A space is put before the text, and before text that follows a special token; none at the start is shown."""
    only_first: bool = False
    """Of add_prefix: not after special tokens."""
    trim_spaces: bool = False
    """Spaces at both ends are dropped, several in a row are one."""
    charsmap: bytes = b""
    """Compiled Unicode normalisation; empty: none."""

    def finds_raw(self) -> bool:
        """Tell whether user-defined tokens are found before normalising: what normalising does would garble them."""
        return self.trim_spaces or bool(self.charsmap) or (self.add_prefix and not self.only_first)


def build_sentencepiece(vocabulary: Vocabulary, rules: Rules) -> "Tokenizer":
    """Build the tokenizer. Raises ModelFileDamaged."""
    from tokenizers import Tokenizer, decoders

    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise ModelFileDamaged(
            f"{vocabulary.source}: there are {len(vocabulary.scores)} scores for {len(vocabulary.tokens)} tokens"
        )
    if not all(map(math.isfinite, vocabulary.scores)):
        raise ModelFileDamaged(f"{vocabulary.source}: a score is infinite or no number")
    longest = max(map(len, vocabulary.tokens), default=0)
    if longest > MAX_PIECE_LENGTH:
        raise ModelFileDamaged(
            f"{vocabulary.source}: a piece has {longest} characters, must be at most {MAX_PIECE_LENGTH}"
        )
    spelled = _spell_spaces(vocabulary, rules)
    tokenizer = Tokenizer(_unigram(spelled) if rules.is_unigram else _bpe(spelled))
    _set_normalizer(tokenizer, rules)
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if rules.add_prefix else []))
    add_special_tokens(tokenizer, spelled)
    _add_user_defined(tokenizer, spelled, rules)
    return tokenizer


def _spell_spaces(vocabulary: Vocabulary, rules: Rules) -> Vocabulary:
    """Write the spaces of user-defined tokens as the text has them where they are looked for; files do either."""
    old, new = (SPACE, " ") if rules.finds_raw() else (" ", SPACE)
    known = set(vocabulary.tokens)
    tokens = [
        spelled if kind == Kind.USER_DEFINED and (spelled := token.replace(old, new)) not in known else token
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    return replace(vocabulary, tokens=tokens)


def _bpe(vocabulary: Vocabulary) -> Any:
    """Rank every way to make a piece of two others by the piece's score; equal scores by id.

    SentencePiece merges the pair whose joined piece has the highest score, the leftmost first, as BPE does with ranks.
    """
    from tokenizers import models

    normal = {
        token: (-score, token_id)
        for token_id, (token, score, kind) in enumerate(
            zip(vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True)
        )
        if kind == Kind.NORMAL
    }
    ranked = []
    for token, rank in normal.items():
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in normal and token[cut:] in normal:
                ranked.append((rank, cut, left, token[cut:]))
    ranked.sort()
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = [(left, right) for _, _, left, right in ranked]
    unknown = vocabulary.names().get("unk_token")
    return models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=_has_bytes(vocabulary))


def _unigram(vocabulary: Vocabulary) -> Any:
    """Keep what isn't text, such as byte tokens, from being found in it: its score is below that of its characters."""
    from tokenizers import models

    columns = list(zip(vocabulary.tokens, vocabulary.scores, vocabulary.kinds, strict=True))
    lowest = min((score for _, score, kind in columns if kind == Kind.NORMAL), default=0.0)
    pieces = [
        (token, score if kind == Kind.NORMAL else min(lowest, -1.0) * (len(token) + 1))
        for token, score, kind in columns
    ]
    return models.Unigram(pieces, unk_id=vocabulary.roles.get("unk_token"), byte_fallback=_has_bytes(vocabulary))


def _has_bytes(vocabulary: Vocabulary) -> bool:
    """Tell whether characters beyond the pieces become bytes; old files don't mark byte tokens as such."""
    return "<0x0A>" in vocabulary.tokens


def _set_normalizer(tokenizer: "Tokenizer", rules: Rules) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[Any] = [normalizers.Precompiled(rules.charsmap)] if rules.charsmap else []
    if rules.trim_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps.append(normalizers.Replace(" ", SPACE))
    if rules.add_prefix and rules.only_first:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    elif rules.add_prefix:
        steps.append(normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)


def _add_user_defined(tokenizer: "Tokenizer", vocabulary: Vocabulary, rules: Rules) -> None:
    from tokenizers import AddedToken

    names = set(vocabulary.names().values())
    tokens = [token for token in vocabulary.of_kind(Kind.USER_DEFINED) if token not in names]
    is_normalized = not rules.finds_raw()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=is_normalized) for token in tokens])

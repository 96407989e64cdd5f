"""Byte-level BPE ("gpt2" in GGUF's words) from a vocabulary and its merges, with the text cut as the model's own does.

Sources: names and patterns are those of llama.cpp's vocabulary loader and of transformers' GGUF support, which agree;
Unicode normalisation is that of the models' own tokenizer classes in transformers.
"""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.text.vocabulary import Kind, Vocabulary, add_special_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    "|".join(words + _ENDING for words in _WORDS.split("|"))
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(Struct, frozen=True):
    """How text is cut before the merges apply."""

    pattern: str | None = None
    """None: GPT-2's own pattern."""
    digits: bool = False
    """Each digit alone."""
    nfc: bool = False
    """Unicode is composed first."""
    ignore_merges: bool = False
    """A piece that is a token is taken whole."""
    add_bos: bool = False
    """Begin with BOS unless the file says otherwise."""


_LLAMA3_FAMILY = PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "phi-2": PreTokenizer(),
    "mpt": PreTokenizer(nfc=True),
    "olmo": PreTokenizer(nfc=True),
    "smollm": PreTokenizer(digits=True),
    "starcoder": PreTokenizer(digits=True),
    "command-r": PreTokenizer(digits=True, nfc=True),
    "qwen2": PreTokenizer(_QWEN2, nfc=True),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2, nfc=True),
    "qwen35": PreTokenizer(_QWEN35, nfc=True),
    "llama-bpe": _LLAMA3_FAMILY,
    "llama3": _LLAMA3_FAMILY,
    "llama-v3": _LLAMA3_FAMILY,
    "falcon3": _LLAMA3_FAMILY,
    "falcon-h1": _LLAMA3_FAMILY,
    "lfm2": _LLAMA3_FAMILY,
    "pixtral": _LLAMA3_FAMILY,
    "dbrx": PreTokenizer(_LLAMA3),
    "smaug-bpe": PreTokenizer(_LLAMA3),
    "tekken": PreTokenizer(_TEKKEN, ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizer(_GPT4O),
    "llama4": PreTokenizer(_GPT4O),
    "minimax-m2": PreTokenizer(_GPT4O),
}
"""By tokenizer.ggml.pre."""


def find_pre_tokenizer(where: object, name: str) -> PreTokenizer:
    """Find a pre-tokenizer by its name in GGUF files. Raises UnsupportedModel listing those built in."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedModel(
            f"{where}: pre-tokenizer {name!r:.80} isn't built in; there are {', '.join(PRE_TOKENIZERS)}"
        )
    return found


def build_bytelevel(vocabulary: Vocabulary, merges: list[str], pre: PreTokenizer) -> "Tokenizer":
    """Build the tokenizer. Raises ModelFileDamaged.

    merges: two tokens with a space between them, the first merge to apply first.
    """
    from tokenizers import AddedToken, Tokenizer, decoders

    tokenizer = Tokenizer(_bpe(vocabulary, merges, pre.ignore_merges))
    _set_pre_tokenizer(tokenizer, pre)
    tokenizer.decoder = decoders.ByteLevel()
    add_special_tokens(tokenizer, vocabulary)
    names = set(vocabulary.names().values())
    whole = [token for token in vocabulary.of_kind(Kind.USER_DEFINED) if token not in names]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in whole])
    return tokenizer


def _bpe(vocabulary: Vocabulary, merges: list[str], ignore_merges: bool) -> "models.BPE":
    from tokenizers import models

    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not left or not right or left not in ids or right not in ids or left + right not in ids:
            raise ModelFileDamaged(f"{vocabulary.source}: the merge {merge!r:.80} joins no tokens")
        pairs.append((left, right))
    return models.BPE(vocab=ids, merges=pairs, fuse_unk=False, ignore_merges=ignore_merges)


def _set_pre_tokenizer(tokenizer: "Tokenizer", pre: PreTokenizer) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[Any] = []
    if pre.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()

"""The tokenizer inside a GGUF file: byte-level BPE ("gpt2"), SentencePiece BPE ("llama") and unigram ("t5").

Source: keys and defaults are those of llama.cpp's vocabulary loader.
"""

from typing import TYPE_CHECKING, TypeVar

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.text.bytelevel import build_bytelevel, find_pre_tokenizer
from headrace.core.text.sentencepiece import Rules, build_sentencepiece
from headrace.core.text.vocabulary import Kind, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T", int, float)

_KEY = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_DEFAULT_IDS = {
    "llama": {"bos_token": 1, "eos_token": 2, "unk_token": 0},
    "t5": {"eos_token": 1, "unk_token": 2, "pad_token": 0},
}
"""Ids of SentencePiece models in files that don't name them, as in llama.cpp."""


def build_gguf_tokenizer(file: GGUFFile) -> "tuple[Tokenizer, dict[str, str]]":
    """Build a GGUF file's tokenizer, and name its special tokens as tokenizer_config.json does.

    Raises UnsupportedModel naming what isn't built in, ModelFileDamaged.
    """
    model = file.value(_KEY + "model", str)
    if model == "gpt2":
        pre = find_pre_tokenizer(file.path, file.value(_KEY + "pre", str, ""))
        vocabulary = _vocabulary(file, model, add_bos=pre.add_bos, add_eos=False)
        return build_bytelevel(vocabulary, file.read_array(_KEY + "merges", str), pre), vocabulary.names()
    if model not in _DEFAULT_IDS:
        raise UnsupportedModel(
            f"{file.path}: tokenizer model {model!r:.80} isn't built in; there are 'gpt2' (byte-level BPE),"
            " 'llama' (SentencePiece BPE) and 't5' (SentencePiece unigram)"
        )
    is_unigram = model == "t5"
    vocabulary = _vocabulary(file, model, add_bos=not is_unigram, add_eos=is_unigram)
    rules = Rules(
        is_unigram=is_unigram,
        add_prefix=file.value(_KEY + "add_space_prefix", bool, not is_unigram),
        trim_spaces=file.value(_KEY + "remove_extra_whitespaces", bool, False),
        charsmap=_charsmap(file),
    )
    return build_sentencepiece(vocabulary, rules), vocabulary.names()


def _vocabulary(file: GGUFFile, model: str, *, add_bos: bool, add_eos: bool) -> Vocabulary:
    tokens = file.read_array(_KEY + "tokens", str)
    return Vocabulary(
        file.path,
        tokens,
        _column(file, "token_type", len(tokens), int(Kind.NORMAL)),
        _roles(file, model, len(tokens)),
        file.value(_KEY + "add_bos_token", bool, add_bos),
        file.value(_KEY + "add_eos_token", bool, add_eos),
        _column(file, "scores", len(tokens), 0.0) if model in _DEFAULT_IDS else [],
    )


def _column(file: GGUFFile, name: str, num_tokens: int, default: T) -> list[T]:
    """Read an array with an entry per token; where there is none, all have the default."""
    if _KEY + name not in file.arrays:
        return [default] * num_tokens
    column = file.read_array(_KEY + name, type(default))
    if len(column) != num_tokens:
        raise ModelFileDamaged(f"{file.path}: {_KEY}{name} has {len(column)} entries for {num_tokens} tokens")
    return column


def _roles(file: GGUFFile, model: str, num_tokens: int) -> dict[str, int]:
    found = {role: file.value(_KEY + key, int) for role, key in _ROLES.items() if _KEY + key in file.metadata}
    for role, token_id in found.items():
        if not 0 <= token_id < num_tokens:
            raise ModelFileDamaged(f"{file.path}: {_KEY}{_ROLES[role]} is {token_id}, beyond the {num_tokens} tokens")
    usual = {role: token_id for role, token_id in _DEFAULT_IDS.get(model, {}).items() if token_id < num_tokens}
    return usual | found


def _charsmap(file: GGUFFile) -> bytes:
    key = _KEY + "precompiled_charsmap"
    return bytes(byte & 0xFF for byte in file.read_array(key, int)) if key in file.arrays else b""

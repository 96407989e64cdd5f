"""Turn the tokenizer inside a GGUF file into a folder that `tokenizers` and AutoTokenizer open, once per file.

Only byte-level BPE ("gpt2" in GGUF's words), with the pre-tokenizers of _PRE_TOKENIZERS.
Source: the names and patterns are those of llama.cpp's vocabulary loader, checked against the models' own tokenizers.
"""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.cache import cache_dir
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.model_files.metadata import gguf_metadata

if TYPE_CHECKING:
    import tokenizers

FORMAT = 1
"""Counts changes of what is written here, so that folders of earlier versions aren't used."""

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""GGUF token types."""

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


class _PreTokenizer(Struct, frozen=True):
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


_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer(),
    "smollm": _PreTokenizer(digits=True),
    "qwen2": _PreTokenizer(_QWEN2, nfc=True),
    "llama-bpe": _PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True),
}
"""By tokenizer.ggml.pre."""


def tokenizer_folder(model: Path) -> Path:
    """Return the folder with this model's tokenizer.json: its own, or the converted one in the cache.

    Raises UnsupportedModel naming what isn't built in, ModelFileDamaged.
    """
    if model.is_dir():
        if not (model / "tokenizer.json").is_file():
            raise UnsupportedModel(f"{model} has no tokenizer.json; save it with AutoTokenizer.save_pretrained")
        return model
    with GGUFFile(model) as file:
        folder = cache_dir() / "tokenizers" / f"{FORMAT}-{file.header_digest()[:32]}"
        if not folder.is_dir():
            _write_folder(file, folder)
    return folder


def _write_folder(file: GGUFFile, folder: Path) -> None:
    """Write all files aside, then rename the whole folder: it is complete or not there."""
    tokenizer, names = _tokenizer(file)
    metadata = gguf_metadata(file)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.context_length,
        "clean_up_tokenization_spaces": False,
        **names,
    }
    template = file.value("tokenizer.chat_template", str, "")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        tokenizer.save(str(aside / "tokenizer.json"), pretty=False)
        _write_json(aside / "tokenizer_config.json", config | ({"chat_template": template} if template else {}))
        _write_json(aside / "special_tokens_map.json", names)
        _write_json(aside / "generation_config.json", {"eos_token_id": list(metadata.eos_ids)})
        aside.chmod(0o755)
        with suppress(OSError):  # another process was first; its folder is the same
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _tokenizer(file: GGUFFile) -> "tuple[tokenizers.Tokenizer, dict[str, str]]":
    """Build the tokenizer, and name its special tokens as tokenizer_config.json does."""
    from tokenizers import AddedToken, Tokenizer, decoders, processors

    pre = _pre_tokenizer_of(file)
    tokens = file.read_array("tokenizer.ggml.tokens", str)
    tokenizer = Tokenizer(_bpe(file, tokens, pre.ignore_merges))
    _set_pre_tokenizer(tokenizer, pre)
    tokenizer.decoder = decoders.ByteLevel()
    ids = {role: _special_id(file, key, tokens) for role, key in _SPECIAL_KEYS.items()}
    names = {role: tokens[token_id] for role, token_id in ids.items() if token_id is not None}
    kinds = list(zip(tokens, _token_types(file, len(tokens)), strict=True))
    special = [token for token, kind in kinds if kind in (_UNKNOWN, _CONTROL) or token in names.values()]
    added = [token for token, kind in kinds if kind == _USER_DEFINED and token not in names.values()]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    bos = names.get("bos_token")
    if bos and file.value("tokenizer.ggml.add_bos_token", bool, pre.add_bos):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    return tokenizer, names


_SPECIAL_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def _pre_tokenizer_of(file: GGUFFile) -> _PreTokenizer:
    model = file.value("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise UnsupportedModel(
            f"{file.path}: tokenizer model {model!r} isn't built in, only 'gpt2' (byte-level BPE) is"
        )
    name = file.value("tokenizer.ggml.pre", str, "")
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModel(
            f"{file.path}: pre-tokenizer {name!r} isn't built in; there are {', '.join(_PRE_TOKENIZERS)}"
        )
    return pre


def _bpe(file: GGUFFile, tokens: list[str], ignore_merges: bool) -> "tokenizers.models.BPE":
    from tokenizers import models

    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelFileDamaged(f"{file.path}: tokenizer.ggml.tokens has {len(tokens) - len(vocab)} tokens twice")
    merges = []
    for merge in file.read_array("tokenizer.ggml.merges", str):
        left, _, right = merge.partition(" ")
        if left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelFileDamaged(f"{file.path}: tokenizer.ggml.merges has {merge!r:.80}, which joins no tokens")
        merges.append((left, right))
    return models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=ignore_merges)


def _set_pre_tokenizer(tokenizer: "tokenizers.Tokenizer", pre: _PreTokenizer) -> None:
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


def _token_types(file: GGUFFile, num_tokens: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    types = file.read_array(key, int) if key in file.arrays else [1] * num_tokens
    if len(types) != num_tokens:
        raise ModelFileDamaged(f"{file.path}: {key} has {len(types)} entries for {num_tokens} tokens")
    return types


def _special_id(file: GGUFFile, key: str, tokens: list[str]) -> int | None:
    if key not in file.metadata:
        return None
    token_id = file.value(key, int)
    if not 0 <= token_id < len(tokens):
        raise ModelFileDamaged(f"{file.path}: {key} is {token_id}, beyond the {len(tokens)} tokens")
    return token_id


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")

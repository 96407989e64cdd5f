"""Turn a model's tokenizer into a folder that `tokenizers` and AutoTokenizer open, once per file.

GGUF files: byte-level BPE ("gpt2"), SentencePiece BPE ("llama") and unigram ("t5"). Model folders: tokenizer.json as it
is, or SentencePiece's tokenizer.model.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core.errors import UnsupportedModel
from headrace.core.model_files.cache import cache_dir
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.model_files.metadata import gguf_metadata
from headrace.core.text.from_gguf import build_gguf_tokenizer
from headrace.core.text.piecefile import PIECE_FILE, SAVE_IT, read_piece_file
from headrace.core.text.sentencepiece import build_sentencepiece
from headrace.core.text.vocabulary import blaming

FORMAT = 2
"""Counts changes of what is written here, so that folders of earlier versions aren't used."""

Files = dict[str, bytes]
"""Contents by name."""

COPIED = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "config.json",
)
"""What a converted folder takes over from the model's own."""


def tokenizer_folder(model: Path) -> Path:
    """Return the folder with this model's tokenizer.json: its own, or the converted one in the cache.

    Raises UnsupportedModel naming what isn't built in, ModelFileDamaged.
    """
    if not model.is_dir():
        with GGUFFile(model) as file:
            return _converted(file.header_digest(), lambda: _gguf_files(file))
    if (model / "tokenizer.json").is_file():
        return model
    if not (model / PIECE_FILE).is_file():
        raise UnsupportedModel(
            f"{model} has neither tokenizer.json nor {PIECE_FILE}; {SAVE_IT}; tokenizer symbols needs none"
        )
    return _converted(_folder_digest(model), lambda: _piece_files(model))


def _converted(digest: str, make: Callable[[], Files]) -> Path:
    """Return the folder of this digest; where it lacks, write it aside, then rename: it is complete or not there."""
    folder = cache_dir() / "tokenizers" / f"{FORMAT}-{digest[:32]}"
    if folder.is_dir():
        return folder
    files = make()
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        for name, content in files.items():
            (aside / name).write_bytes(content)
        aside.chmod(0o755)
        with suppress(OSError):  # another process was first; its folder is the same
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _gguf_files(file: GGUFFile) -> Files:
    with blaming(file.path):
        tokenizer, names = build_gguf_tokenizer(file)
        content = tokenizer.to_str().encode()
    metadata = gguf_metadata(file)
    template = file.value("tokenizer.chat_template", str, "")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.context_length,
        "clean_up_tokenization_spaces": False,
        **names,
    } | ({"chat_template": template} if template else {})
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(names),
        "generation_config.json": _json({"eos_token_id": list(metadata.eos_ids)}),
    }


def _folder_digest(model: Path) -> str:
    """Digest what the converted folder depends on."""
    digest = hashlib.sha256()
    for name in (PIECE_FILE, *COPIED):
        content = (model / name).read_bytes() if (model / name).is_file() else b""
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _piece_files(model: Path) -> Files:
    vocabulary, rules = read_piece_file(model)
    with blaming(model / PIECE_FILE):
        content = build_sentencepiece(vocabulary, rules).to_str().encode()
    copied = {name: (model / name).read_bytes() for name in COPIED if (model / name).is_file()}
    return copied | {"tokenizer.json": content}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode()

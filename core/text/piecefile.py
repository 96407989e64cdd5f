"""The tokenizer of a model folder that has SentencePiece's tokenizer.model, but no tokenizer.json.

tokenizer_config.json says what that file can't: tokens added later, BOS and EOS around texts, spaces after specials.
"""

from pathlib import Path
from typing import Any

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.metadata import read_json
from headrace.core.model_files.sentencepiece import SentencePieceModel, read_sentencepiece
from headrace.core.text.sentencepiece import Rules
from headrace.core.text.vocabulary import Kind, Vocabulary

PIECE_FILE = "tokenizer.model"
SAVE_IT = (
    "save its tokenizer there as tokenizer.json, with transformers:"
    " AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)
"""What to do about a tokenizer that can't be converted here."""
_UNIGRAM, _BPE = 1, 2


def read_piece_file(model: Path) -> tuple[Vocabulary, Rules]:
    """Read a model folder's tokenizer.model and tokenizer_config.json. Raises ModelFileDamaged, UnsupportedModel."""
    file = model / PIECE_FILE
    pieces = read_sentencepiece(file)
    if pieces.model_type not in (_UNIGRAM, _BPE) or pieces.whitespace_as_suffix or not pieces.escape_spaces:
        raise UnsupportedModel(
            f"{file}: SentencePiece models of words or characters, or with spaces at the end of pieces, aren't built"
            f" in; {SAVE_IT}"
        )
    config_file = model / "tokenizer_config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    rules = Rules(
        is_unigram=pieces.model_type == _UNIGRAM,
        add_prefix=pieces.add_prefix,
        only_first=config.get("legacy") is False,
        trim_spaces=pieces.trim_spaces,
        charsmap=pieces.charsmap,
    )
    return _vocabulary(file, pieces, config), rules


def _vocabulary(file: Path, pieces: SentencePieceModel, config: dict[str, Any]) -> Vocabulary:
    tokens, scores, kinds = list(pieces.pieces), list(pieces.scores), list(pieces.types)
    for token_id, token, is_special in _added_tokens(file, config):
        if not 0 <= token_id <= len(tokens):
            raise ModelFileDamaged(
                f"{file.parent}: added token {token!r:.80} has the id {token_id}, beyond {len(tokens)}"
            )
        if token_id == len(tokens):
            tokens.append("")
            scores.append(0.0)
            kinds.append(0)
        tokens[token_id] = token
        kinds[token_id] = Kind.CONTROL if is_special else Kind.USER_DEFINED
    ids = {
        "bos_token": pieces.bos_id,
        "eos_token": pieces.eos_id,
        "unk_token": pieces.unk_id,
        "pad_token": pieces.pad_id,
    }
    roles = {role: token_id for role, token_id in ids.items() if 0 <= token_id < len(tokens)}
    add_bos = config.get("add_bos_token", True) is True
    add_eos = config.get("add_eos_token", False) is True
    return Vocabulary(file, tokens, kinds, roles, add_bos, add_eos, scores)


def _added_tokens(file: Path, config: dict[str, Any]) -> list[tuple[int, str, bool]]:
    """List tokens added to the model, or renamed in it: id, text, and whether it is special, in the order of ids."""
    found = config.get("added_tokens_decoder", {})
    added = []
    for token_id, token in found.items() if isinstance(found, dict) else ():
        content = token.get("content") if isinstance(token, dict) else None
        if not token_id.isdecimal() or not isinstance(content, str):
            raise ModelFileDamaged(f"{file.parent / 'tokenizer_config.json'}: added token {token_id!r:.80} is damaged")
        added.append((int(token_id[:18]), content, token.get("special") is True))
    return sorted(added)

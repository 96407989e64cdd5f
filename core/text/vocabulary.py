"""What every kind of tokenizer is built from: its tokens, their kinds, and which of them are special.

Not here: how text is cut into these tokens (bytelevel.py, sentencepiece.py) and where they come from (convert.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.core.errors import HeadraceError, ModelFileDamaged

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Kind(IntEnum):
    """Kinds of tokens, numbered as in GGUF files and SentencePiece models."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_KINDS = (Kind.UNKNOWN, Kind.CONTROL)


class Vocabulary(Struct, frozen=True):
    """A model's tokens. Raises ModelFileDamaged if a token is there twice."""

    source: Path
    """File they come from, for error messages."""
    tokens: list[str]
    """By id."""
    kinds: list[int]
    """A Kind by id; other numbers count as normal."""
    roles: dict[str, int]
    """Ids by role, named as in tokenizer_config.json: bos_token, eos_token, unk_token, pad_token."""
    add_bos: bool = False
    """Texts begin with bos_token."""
    add_eos: bool = False
    """Texts end with eos_token."""
    scores: list[float] = []
    """By id; of SentencePiece models only."""

    def __post_init__(self) -> None:
        twice = len(self.tokens) - len(set(self.tokens))
        if twice:
            raise ModelFileDamaged(f"{self.source}: {twice} tokens of the vocabulary are there twice")

    def names(self) -> dict[str, str]:
        """Return the special tokens by role."""
        return {role: self.tokens[token_id] for role, token_id in self.roles.items()}

    def of_kind(self, *kinds: int) -> list[str]:
        """List the tokens of these kinds."""
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]


def add_special_tokens(tokenizer: "Tokenizer", vocabulary: Vocabulary) -> None:
    """Let special tokens be found in text as they are written, and be put around texts."""
    from tokenizers import AddedToken, processors

    names = vocabulary.names()
    special = dict.fromkeys([*vocabulary.of_kind(*SPECIAL_KINDS), *names.values()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    bos = [names["bos_token"]] if vocabulary.add_bos and "bos_token" in names else []
    eos = [names["eos_token"]] if vocabulary.add_eos and "eos_token" in names else []
    if bos or eos:
        ids = [(token, vocabulary.tokens.index(token)) for token in dict.fromkeys(bos + eos)]
        tokenizer.post_processor = processors.TemplateProcessing(single=[*bos, "$A", *eos], special_tokens=ids)


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Turn whatever the tokenizers library does on a file's content into ModelFileDamaged."""
    try:
        yield
    except HeadraceError:
        raise
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ModelFileDamaged(f"{path}: its tokenizer can't be built: {error}") from error


def is_library_error(error: BaseException) -> bool:
    """Tell whether the tokenizers library may have raised this: any Exception, or a panic, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"

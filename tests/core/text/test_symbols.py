"""One character per token."""

import pytest

from headrace.core.errors import InvalidPrompt
from headrace.core.text.symbols import SymbolsOptions, SymbolsTokenizer


def test_every_id_of_a_large_vocabulary_is_a_character_of_its_own() -> None:
    tokenizer = SymbolsTokenizer(SymbolsOptions(vocab_size=262_144))
    text = tokenizer.decode(range(262_144), skip_special_tokens=False)
    assert text.encode().decode() == text
    assert tokenizer.encode(text) == list(range(262_144))


@pytest.mark.parametrize("text", ["\n", "\ud800", "\udfff", chr(0x10000)])
def test_a_character_out_of_the_vocabulary_is_refused(text: str) -> None:
    with pytest.raises(InvalidPrompt, match="which this vocabulary of symbols lacks"):
        SymbolsTokenizer(SymbolsOptions(vocab_size=60_000)).encode(text)

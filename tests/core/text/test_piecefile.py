import json
from pathlib import Path
from typing import Any

import pytest
from piecefiles import number_field, piece_file
from tokenizing import SlowMerges, SlowUnigram, texts

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.tokenizer import FolderTokenizer, load_tokenizer

SPACE = "\u2581"
WORDS = (SPACE + "the", SPACE + "w", "he", "wo", "rld", "or", "th", SPACE + "t", "aa", "aaa", "12")
PIECES = [
    *[("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)],
    *[(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)],
    *[(text, -1.0 - index / 8, 1) for index, text in enumerate((*WORDS, SPACE, *map(chr, range(33, 127))))],
]


@pytest.fixture
def folder(tmp_path: Path, cache_home: Path) -> Path:
    """A model folder with a tokenizer.model alone."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "tokenizer.model").write_bytes(piece_file(PIECES))
    return found


def configure(folder: Path, **config: Any) -> FolderTokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


@pytest.mark.parametrize(("model_type", "slow"), [(2, SlowMerges), (1, SlowUnigram)])
@pytest.mark.parametrize("prefix", [True, False])
def test_H02_ids_equal_those_of_a_slow_encoder(folder: Path, model_type: int, slow: Any, prefix: bool) -> None:
    (folder / "tokenizer.model").write_bytes(piece_file(PIECES, model_type=model_type, add_prefix=prefix))
    tokenizer = load_tokenizer(folder)
    reference = slow(*map(list, zip(*PIECES, strict=True)), prefix)
    for text in texts(100):
        assert tokenizer.encode(text) == [1, *reference.encode(text)], repr(text)


def test_bos_and_eos_follow_tokenizer_config(folder: Path) -> None:
    assert configure(folder, add_bos_token=False).encode("the")[0] != 1
    assert configure(folder, add_eos_token=True).encode("the")[-1] == 2


def test_tokens_added_later_are_found_whole(folder: Path) -> None:
    new = len(PIECES)
    tokenizer = configure(
        folder,
        added_tokens_decoder={
            str(new): {"content": "<|end|>", "special": True},
            str(new + 1): {"content": "<think>", "special": False},
            "1": {"content": "<s>", "special": True},
        },
    )
    ids = tokenizer.encode("the<|end|><think>")
    assert ids[-2:] == [new, new + 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the<think>"


def test_a_tokenizer_that_is_not_legacy_has_one_space_at_the_start_only(folder: Path) -> None:
    space = [text for text, _, _ in PIECES].index(SPACE + "the")
    assert configure(folder).encode("the</s>the", False) == [space, 2, space]
    ids = configure(folder, legacy=False).encode("the</s>the", False)
    assert ids[:2] == [space, 2]
    assert space not in ids[2:]


def test_the_folders_own_files_count_too(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    tokenizer = configure(folder, bos_token="<s>")
    assert tokenizer.eos_ids == (2, 7)
    assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == "<s>Hi"


def test_a_changed_file_is_converted_again(folder: Path) -> None:
    before = tokenizer_folder(folder)
    assert tokenizer_folder(folder) == before
    (folder / "tokenizer.model").write_bytes(piece_file(PIECES[:-1]))
    assert tokenizer_folder(folder) != before


@pytest.mark.parametrize(
    "content",
    [
        piece_file(PIECES, model_type=3),
        piece_file(PIECES, model_type=4),
        piece_file(PIECES, trainer=number_field(24, 1)),
    ],
)
def test_models_of_words_or_characters_are_refused_with_a_way_out(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"save its tokenizer there as tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "added",
    [
        {"100000": {"content": "a b"}},
        {"x": {"content": "a b"}},
        {"1": "a b"},
        {"1": {"content": 3}},
        {"9" * 5000: {"content": "a b"}},
        {"3": {"content": "<s>"}},
    ],
)
def test_H03_damaged_added_tokens_are_named(folder: Path, added: dict[str, Any]) -> None:
    with pytest.raises(ModelFileDamaged):
        configure(folder, added_tokens_decoder=added)


def test_H03_a_vocabulary_of_tiktoken_is_no_sentencepiece_model(folder: Path) -> None:
    (folder / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    with pytest.raises(ModelFileDamaged, match="is no SentencePiece model"):
        load_tokenizer(folder)

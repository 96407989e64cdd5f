import random
import string
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizing import SlowMerges, SlowUnigram, texts

from headrace.core.errors import InvalidPrompt, ModelFileDamaged
from headrace.core.messages import TextPart
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.stream import TextStream
from headrace.core.text.tokenizer import FolderTokenizer

Make = Callable[..., Any]
SPACE = "\u2581"
WORDS = ["Hello", "world", "the", "naïve", "\n\n", "don't", "I'll", "1234", "3.14", "aaaa", "abab", "<|im_end|", "!?"]


def pieces() -> dict[str, tuple[float, int]]:
    """Make a vocabulary: score and kind by token. Scores fall with the id, as training leaves them."""
    found = {"<unk>": (0.0, 2), "<s>": (0.0, 3), "</s>": (0.0, 3), "<b>": (0.0, 4), "  ": (0.0, 4), "\t": (0.0, 4)}
    found |= {f"<0x{byte:02X}>": (0.0, 6) for byte in range(256)}
    parts: dict[str, None] = {}
    for size in (2, 3, 4, 6):
        for word in WORDS:
            spaced = SPACE + word
            parts |= dict.fromkeys(spaced[at : at + size] for at in range(len(spaced) - size + 1))
    parts |= dict.fromkeys(SPACE + "".join(WORDS) + string.ascii_letters + string.digits + string.punctuation)
    return found | {part: (-1.0 - index / 8, 1) for index, part in enumerate(parts)}


@pytest.fixture
def spm_gguf(tokenizer_gguf: Make) -> Make:
    """Make a GGUF file with a small SentencePiece vocabulary."""

    def make(model: str = "llama", **changed: Any) -> Any:
        vocabulary = pieces()
        columns = {
            "tokens": list(vocabulary),
            "scores": [score for score, _ in vocabulary.values()],
            "token_type": [kind for _, kind in vocabulary.values()],
        }
        ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": None, "merges": None}
        keys = {"model": model, "pre": "default", "add_bos_token": None} | columns | ids | changed
        return tokenizer_gguf(**{f"tokenizer__ggml__{key}": value for key, value in keys.items()})

    return make


@pytest.fixture
def opened(spm_gguf: Make, tmp_path: Path, cache_home: Path) -> Callable[..., FolderTokenizer]:
    """Write such a file and open its tokenizer."""

    def open_it(model: str = "llama", **changed: Any) -> FolderTokenizer:
        path = tmp_path / "model.gguf"
        path.write_bytes(spm_gguf(model, **changed).build())
        return FolderTokenizer(tokenizer_folder(path))

    return open_it


def columns() -> tuple[list[str], list[float], list[int]]:
    vocabulary = pieces()
    return list(vocabulary), [score for score, _ in vocabulary.values()], [kind for _, kind in vocabulary.values()]


# --- ids ---


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(("model", "slow"), [("llama", SlowMerges), ("t5", SlowUnigram)])
def test_H02_ids_equal_those_of_a_slow_encoder(
    opened: Callable[..., FolderTokenizer], model: str, slow: Any, prefix: bool
) -> None:
    tokenizer = opened(model, add_space_prefix=prefix)
    reference = slow(*columns(), prefix)
    for text in texts(200):
        # Without a prefix, user-defined tokens are found in text whose spaces are written as the model has them.
        spaced = text if prefix else text.replace(SPACE, " ")
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(spaced), repr(text)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("model", ["llama", "t5"])
def test_H02_text_comes_back_as_it_was(opened: Callable[..., FolderTokenizer], model: str, prefix: bool) -> None:
    tokenizer = opened(model, add_space_prefix=prefix)
    for text in texts(200):
        if not prefix or not any(whole in text for whole in ("<s>", "</s>", "<b>", "  ", "\t")):
            assert tokenizer.decode(tokenizer.encode(text, False), False) == text.replace(SPACE, " ")


def test_H02_llama_models_begin_with_bos_and_t5_models_end_with_eos(opened: Callable[..., FolderTokenizer]) -> None:
    assert opened("llama").encode("") == [1]
    assert opened("t5").encode("") == [2]
    both = opened("llama", add_bos_token=True, add_eos_token=True).encode("Hello")
    assert (both[0], both[-1]) == (1, 2)
    assert opened("llama", add_bos_token=False).encode("") == []


def test_tokens_of_each_kind_are_found_whole_or_never(opened: Callable[..., FolderTokenizer]) -> None:
    tokenizer = opened(add_space_prefix=False)
    ids = {token: token_id for token_id, token in enumerate(pieces())}
    assert tokenizer.encode("<b></s>", False) == [ids["<b>"], ids["</s>"]]
    assert tokenizer.special_ids == {0, 1, 2}
    assert ids["<0x41>"] not in tokenizer.encode("<0x41>", False)
    assert tokenizer.encode("\x04", False) == [ids["<0x04>"]]


def test_spaces_of_user_defined_tokens_may_be_written_either_way(opened: Callable[..., FolderTokenizer]) -> None:
    tokens = columns()[0]
    other = [token.replace(" ", SPACE) for token in tokens]
    for prefix in (True, False):
        for text in ("a  b", " a", "  the", "the    the"):
            ids = opened(add_space_prefix=prefix).encode(text)
            assert opened(add_space_prefix=prefix, tokens=other).encode(text) == ids
            assert ("  " in text) == (tokens.index("  ") in ids)


def test_a_model_without_byte_tokens_makes_one_unknown_of_several(opened: Callable[..., FolderTokenizer]) -> None:
    tokens, scores, kinds = columns()
    kept = [index for index, kind in enumerate(kinds) if kind != 6]
    for model in ("llama", "t5"):
        tokenizer = opened(
            model,
            tokens=[tokens[index] for index in kept],
            scores=[scores[index] for index in kept],
            token_type=[kinds[index] for index in kept],
        )
        assert tokenizer.encode("😀世", False)[-1:] == [0]
        assert tokenizer.encode("😀世", False).count(0) == 1


def test_spaces_are_trimmed_where_the_file_says_so(opened: Callable[..., FolderTokenizer]) -> None:
    kinds = [1 if token == "  " else kind for token, kind in zip(columns()[0], columns()[2], strict=True)]
    tokenizer = opened("t5", token_type=kinds, add_space_prefix=True, remove_extra_whitespaces=True)
    assert tokenizer.encode(" the   world ") == tokenizer.encode("the world")


# --- the real models ---


def read_columns(path: Path) -> tuple[list[str], list[float], list[int]]:
    with GGUFFile(path) as file:
        return (
            file.read_array("tokenizer.ggml.tokens", str),
            file.read_array("tokenizer.ggml.scores", float),
            file.read_array("tokenizer.ggml.token_type", int),
        )


@pytest.mark.verify
def test_H02_gemmas_ids_equal_those_of_a_slow_encoder_and_come_back(gemma3: Path) -> None:
    tokenizer = FolderTokenizer(tokenizer_folder(gemma3))
    reference = SlowMerges(*read_columns(gemma3), prefix=False)
    for text in texts(200):
        ids, spaced = tokenizer.encode(text), text.replace(SPACE, " ")
        assert ids == [2, *reference.encode(spaced)], repr(text)
        assert tokenizer.decode(ids[1:], skip_special_tokens=False) == spaced
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (262144, (1,))


@pytest.mark.verify
def test_H02_gemmas_ids_equal_those_of_transformers(gemma3: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = FolderTokenizer(tokenizer_folder(gemma3))
    auto = transformers.AutoTokenizer.from_pretrained(gemma3.parent, gguf_file=gemma3.name)
    for text in texts(200):
        ids = tokenizer.encode(text)
        assert ids == auto.encode(text), repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == auto.decode(ids, skip_special_tokens=True)


# --- ids to text ---


def library_decode(tokenizer: FolderTokenizer, ids: list[int], skip: bool) -> str:
    return str(tokenizer._tokenizer.decode(ids, skip_special_tokens=skip))


@pytest.fixture(scope="module")
def tokenizers(tokenizer_gguf: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, FolderTokenizer]:
    """One tokenizer that puts a space before texts, one that doesn't."""
    folder = tmp_path_factory.mktemp("spm")
    tokens, scores, kinds = columns()
    found = {}
    for prefix in (True, False):
        keys = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds, "add_space_prefix": prefix}
        keys |= {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": None, "merges": None}
        builder = tokenizer_gguf(**{f"tokenizer__ggml__{key}": value for key, value in keys.items()})
        (folder / f"{prefix}.gguf").write_bytes(builder.build())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder))
            found[prefix] = FolderTokenizer(tokenizer_folder(folder / f"{prefix}.gguf"))
    return found


TEXTS = st.lists(st.sampled_from([*WORDS, " the", "😀", "世界", "<s>", "</s>", "<b>", "  ", " "]), max_size=8).map(
    "".join
)


@given(text=TEXTS, prefix=st.booleans(), skip=st.booleans())
@settings(max_examples=300, deadline=None)
def test_H02_whole_characters_decode_as_in_the_library(
    tokenizers: dict[bool, FolderTokenizer], text: str, prefix: bool, skip: bool
) -> None:
    tokenizer = tokenizers[prefix]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip) == library_decode(tokenizer, ids, skip)


@given(data=st.data(), prefix=st.booleans(), skip=st.booleans(), size=st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_A03_any_ids_stream_as_they_decode(
    tokenizers: dict[bool, FolderTokenizer], data: st.DataObject, prefix: bool, skip: bool, size: int
) -> None:
    tokenizer = tokenizers[prefix]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    decoder = tokenizer.detokenizer((), skip)
    joined = "".join(decoder.push(ids[start : start + size]) for start in range(0, len(ids), size)) + decoder.flush()
    assert joined == tokenizer.decode(ids, skip)


@given(text=TEXTS, cut=st.integers(0, 40), prefix=st.booleans())
@settings(max_examples=300, deadline=None)
def test_A10_what_follows_a_prompt_is_what_it_adds_to_the_text(
    tokenizers: dict[bool, FolderTokenizer], text: str, cut: int, prefix: bool
) -> None:
    tokenizer = tokenizers[prefix]
    ids = tokenizer.encode(text)
    prompt, rest = ids[:cut], ids[cut:]
    before = tokenizer.decode(prompt, True)
    decoder = tokenizer.detokenizer(prompt, True)
    if not before.endswith("\ufffd"):
        assert before + decoder.push(rest) + decoder.flush() == tokenizer.decode(ids, True)


def test_A01_bytes_come_out_as_whole_characters(tokenizers: dict[bool, FolderTokenizer]) -> None:
    tokenizer = tokenizers[True]
    decoder = tokenizer.detokenizer((), True)
    ids = tokenizer.encode("Hello 😀", False)
    deltas = [decoder.push([token_id]) for token_id in ids]
    assert deltas[-4:] == ["", "", "", "😀"]
    assert "".join(deltas) == "Hello 😀"


def test_A02_half_a_character_is_one_replacement_at_the_end(tokenizers: dict[bool, FolderTokenizer]) -> None:
    tokenizer = tokenizers[False]
    half = tokenizer.encode("😀", False)[:2]
    decoder = tokenizer.detokenizer((), True)
    assert (decoder.push(half), decoder.flush()) == ("", "\ufffd")
    assert tokenizer.decode(half, True) == "\ufffd"


def test_A10_a_space_is_dropped_only_at_the_start_of_all_text(tokenizers: dict[bool, FolderTokenizer]) -> None:
    tokenizer = tokenizers[True]
    ids = tokenizer.encode("the", False)
    assert tokenizer.detokenizer([1], True).push(ids) == "the"
    assert tokenizer.detokenizer([1], False).push(ids) == " the"
    assert tokenizer.detokenizer(ids, True).push(ids) == " the"
    assert tokenizer.token_text(ids[0]).startswith(" ")


# --- stopping ---


def stream(tokenizer: FolderTokenizer, special_stops: dict[int, str] | None = None, **changed: Any) -> TextStream:
    part = TextPart((), (), include_stop=False, skip_special_tokens=True, min_tokens=0)
    decoder = tokenizer.detokenizer((1,), skip_special_tokens=changed.get("skip_special_tokens", True))
    return TextStream(msgspec.structs.replace(part, **changed), decoder, special_stops or {})


@given(data=st.data(), prefix=st.booleans(), size=st.integers(1, 3), include=st.booleans())
@settings(max_examples=200, deadline=None)
def test_A05_a_stop_string_is_found_wherever_tokens_are_cut(
    tokenizers: dict[bool, FolderTokenizer], data: st.DataObject, prefix: bool, size: int, include: bool
) -> None:
    tokenizer = tokenizers[prefix]
    ids = tokenizer.encode("Hello the world 1234, don't 😀 世界 aaaa abab!", False)
    whole = tokenizer.decode(ids, True)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = whole[start : start + data.draw(st.integers(1, 12))]
    text = stream(tokenizer, stop=(stop,), include_stop=include)
    joined = "".join(text.push(ids[at : at + size]) for at in range(0, len(ids), size)) + text.finish()
    found = whole.index(stop)
    assert joined == whole[: found + len(stop) if include else found]
    assert text.hit == stop


def test_A13_a_special_stop_is_left_out_of_the_text(tokenizers: dict[bool, FolderTokenizer]) -> None:
    for tokenizer in tokenizers.values():
        ids = tokenizer.encode("Hello world</s>", False)
        hidden = stream(tokenizer, {2: "</s>"}, stop=("</s>",))
        assert hidden.push(ids) + hidden.finish() == "Hello world"
        shown = stream(tokenizer, stop=("</s>",), skip_special_tokens=False)
        assert (shown.push(ids) + shown.finish()).strip() == "Hello world"
        assert hidden.hit == shown.hit == "</s>"


# --- damage ---


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores": None}, None),
        ({"scores": [0.5]}, "scores has 1 entries"),
        ({"scores": [1, 2]}, "holds int, not float"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
        ({"unknown_token_id": 100_000}, "beyond the"),
        ({"add_space_prefix": 3}, "must be bool"),
        ({"precompiled_charsmap": ["a"]}, "holds str, not int"),
    ],
)
def test_H03_a_damaged_vocabulary_is_named(
    opened: Callable[..., FolderTokenizer], changed: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert opened(**changed).encode("the")
    else:
        with pytest.raises(ModelFileDamaged, match=message):
            opened(**changed)


def test_H03_an_endless_piece_is_damage(opened: Callable[..., FolderTokenizer]) -> None:
    tokens, scores, kinds = columns()
    with pytest.raises(ModelFileDamaged, match="a piece has 5000 characters"):
        opened(tokens=[*tokens, "x" * 5000], scores=[*scores, 0.0], token_type=[*kinds, 1])


def test_H03_a_score_that_is_no_number_is_damage(opened: Callable[..., FolderTokenizer]) -> None:
    scores = columns()[1]
    for value in (float("nan"), float("inf")):
        with pytest.raises(ModelFileDamaged, match="infinite or no number"):
            opened(scores=[value, *scores[1:]])


@pytest.mark.parametrize("model", ["llama", "t5"])
def test_H03_any_normalisation_map_is_refused_or_works(opened: Callable[..., FolderTokenizer], model: str) -> None:
    rng = random.Random(0)
    for size in (1, 4, 5, 8, 64, 300):
        charsmap = [rng.randrange(-128, 128) for _ in range(size)]
        with suppress(ModelFileDamaged, InvalidPrompt):
            opened(model, precompiled_charsmap=charsmap).encode("Hello world")

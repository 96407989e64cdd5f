import random
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from headrace.core.interfaces import Detokenizer
from headrace.core.text.detokenizer import ByteDetokenizer, ContextDetokenizer, token_bytes
from headrace.core.text.tokenizer import FolderTokenizer

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
U_FFFD = "\ufffd"


def feed(decoder: Detokenizer, token_ids: Sequence[int], size: int = 1) -> list[str]:
    """Push ids in groups of one size, then flush."""
    groups = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    return [*(decoder.push(group) for group in groups), decoder.flush()]


def random_ids(rng: random.Random, tokenizer: FolderTokenizer, favoured: Sequence[int]) -> list[int]:
    """Draw 64 ids: any, special ones, bytes, and those that break characters."""
    kinds = [range(tokenizer.vocab_size), sorted(tokenizer.special_ids), range(3, 259), favoured]
    return [rng.choice(rng.choice(kinds)) for _ in range(64)]


def check_random_lists(tokenizer: FolderTokenizer, favoured: Sequence[int], count: int) -> None:
    rng = random.Random(8)
    for index in range(count):
        token_ids, skip = random_ids(rng, tokenizer, favoured), index % 2 == 0
        whole = tokenizer.decode(token_ids, skip)
        for size in (1, 3):
            assert "".join(feed(tokenizer.detokenizer((), skip), token_ids, size)) == whole


def test_A03_random_ids_decode_like_all_at_once(tiny_tokenizer: FolderTokenizer) -> None:
    check_random_lists(tiny_tokenizer, tiny_tokenizer.encode("😀é你" + FAMILY + U_FFFD), 1000)


def test_A03_random_ids_of_the_real_model_decode_like_all_at_once(smol_tokenizer: FolderTokenizer) -> None:
    check_random_lists(smol_tokenizer, [10813, 242, 218, 18645, 250, 24211, 459, 255, 40686], 2000)


@pytest.mark.parametrize("text", ["😀", "你", FAMILY, "A 世a", "naïve “quotes”"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_A01_split_characters_come_out_whole(tiny_tokenizer: FolderTokenizer, text: str, size: int) -> None:
    deltas = feed(tiny_tokenizer.detokenizer((), True), tiny_tokenizer.encode(text), size)
    assert "".join(deltas) == text
    assert not any(U_FFFD in delta for delta in deltas)


@pytest.mark.parametrize(
    ("token_ids", "deltas"),
    [
        ([10813, 242, 218], ["", "", "😀", ""]),
        ([18645, 250], ["", "你", ""]),
        ([10813], ["", U_FFFD]),
        ([242, 218], [U_FFFD, U_FFFD, ""]),
        ([7906, 81], ["", U_FFFD + "a", ""]),
        ([10813, 10813, 242, 218], ["", U_FFFD, "", "😀", ""]),
        ([459, 255], [" ", U_FFFD + "he", ""]),
        ([19556, 2, 905], ["Hello", "", " world", ""]),
        ([81, 333, 278], ["a", "   ", " b", ""]),
        ([40686, 2273], [" " * 64, " X", ""]),
        ([7042], [" Paris", ""]),
        ([24211], [U_FFFD, ""]),
    ],
)
def test_A01_A10_known_ids_give_known_deltas(
    smol_tokenizer: FolderTokenizer, token_ids: list[int], deltas: list[str]
) -> None:
    assert feed(smol_tokenizer.detokenizer((), True), token_ids) == deltas


def test_A14_a_prompt_that_ends_mid_character_breaks_nothing(smol_tokenizer: FolderTokenizer) -> None:
    text = "".join(feed(smol_tokenizer.detokenizer([19556, 10813, 242], True), [218, 905]))
    assert text == smol_tokenizer.decode([218, 905], True)
    assert text.endswith(" world")


def test_special_tokens_are_shown_or_skipped(tiny_tokenizer: FolderTokenizer) -> None:
    token_ids = tiny_tokenizer.encode("Hello<|im_end|> world")
    assert "".join(feed(tiny_tokenizer.detokenizer((), True), token_ids)) == "Hello world"
    assert "".join(feed(tiny_tokenizer.detokenizer((), False), token_ids)) == "Hello<|im_end|> world"


def test_a_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    assert token_bytes("Ġa") == b" a"
    assert token_bytes("<a b>") == b"<a b>"
    assert token_bytes("你") == "你".encode()


def test_no_more_than_three_bytes_are_held(tiny_tokenizer: FolderTokenizer) -> None:
    decoder = ByteDetokenizer([b"\xf0\x9f\x98"])
    assert decoder.push([0]) == ""
    assert decoder.push([0] * 100) == U_FFFD * 100
    assert decoder.flush() == U_FFFD


# --- any tokenizer ---

PIECES = ["▁Hello", "▁world", "▁", "a", "b", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    """A tokenizer whose decoder drops the text's first space and has tokens for single bytes."""
    vocab = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def byte_ids(text: str) -> list[int]:
    return [PIECES.index(f"<0x{byte:02X}>") for byte in text.encode()]


def test_any_decoder_gives_whole_characters(sentencepiece_like: Tokenizer) -> None:
    deltas = feed(ContextDetokenizer(sentencepiece_like.decode, ()), [0, *byte_ids("😀"), 1])
    assert deltas == ["Hello", "", "", "", "😀", " world", ""]


def test_A10_a_space_after_the_prompt_is_kept(sentencepiece_like: Tokenizer) -> None:
    assert feed(ContextDetokenizer(sentencepiece_like.decode, [0]), [1, 3]) == [" world", "a", ""]
    assert feed(ContextDetokenizer(sentencepiece_like.decode, []), [1, 3]) == ["world", "a", ""]


def test_A02_an_unfinished_character_comes_out_at_the_end(sentencepiece_like: Tokenizer) -> None:
    deltas = feed(ContextDetokenizer(sentencepiece_like.decode, ()), [0, *byte_ids("😀")[:2]])
    assert deltas == ["Hello", "", "", U_FFFD * 2]


def test_what_is_certain_does_not_depend_on_how_many_ids_came_at_once(sentencepiece_like: Tokenizer) -> None:
    """After a restart, the ids a request had come at once: text that is with the frontend must not come again."""
    token_ids = [0, 1, *byte_ids("😀")[:2]]
    one_by_one, at_once = [ContextDetokenizer(sentencepiece_like.decode, ()) for _ in range(2)]
    assert "".join(one_by_one.push([token_id]) for token_id in token_ids) == at_once.push(token_ids) == "Hello world"
    assert one_by_one.push(byte_ids("😀")[2:]) == at_once.push(byte_ids("😀")[2:]) == "😀"


def test_A14_a_context_that_ends_mid_character_is_shortened(sentencepiece_like: Tokenizer) -> None:
    half = byte_ids("😀")
    deltas = feed(ContextDetokenizer(sentencepiece_like.decode, [0, *half[:2]]), [half[2], 1])
    assert "".join(deltas) == U_FFFD + " world"


def test_A03_any_decoder_gives_the_text_of_all_ids(sentencepiece_like: Tokenizer) -> None:
    rng = random.Random(3)
    texts = [0, 1, 2, 3, 4]
    for _ in range(300):
        token_ids = [rng.choice(texts)]
        for _ in range(16):
            token_ids += rng.choice([[rng.choice(texts)], byte_ids(rng.choice("😀é你"))])
        for size in (1, 4):
            joined = "".join(feed(ContextDetokenizer(sentencepiece_like.decode, ()), token_ids, size))
            assert joined == sentencepiece_like.decode(token_ids)


# --- decoders that have no bytes of their own for each token ---

WORDS = ["▁the", "▁w", "a", "bc", "▁", "▁▁", "▁▁▁x", "é", "</s>", "世"]


def odd_tokenizer(decoder: object) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(WORDS)}, merges=[]))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.decoder = decoder
    return tokenizer


ODD_DECODERS = {
    "metaspace": odd_tokenizer(decoders.Metaspace()),
    "metaspace without prefix": odd_tokenizer(decoders.Metaspace(prepend_scheme="never")),
    "stripped": odd_tokenizer(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    ),
    "words": odd_tokenizer(decoders.BPEDecoder("c")),
}


@given(
    name=st.sampled_from(sorted(ODD_DECODERS)),
    token_ids=st.lists(st.integers(0, len(WORDS) - 1), max_size=30),
    size=st.integers(1, 4),
    skip=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_A03_decoders_that_look_at_neighbours_stream_as_they_decode(
    name: str, token_ids: list[int], size: int, skip: bool
) -> None:
    tokenizer = ODD_DECODERS[name]
    decode = partial(tokenizer.decode, skip_special_tokens=skip)
    assert "".join(feed(ContextDetokenizer(decode, ()), token_ids, size)) == decode(token_ids)


def test_many_ids_at_once_take_time_that_grows_with_their_number_only() -> None:
    """Byte by byte, a million ids took minutes."""
    assert ByteDetokenizer({0: b"abcd"}).push([0] * 1_000_000) == "abcd" * 1_000_000

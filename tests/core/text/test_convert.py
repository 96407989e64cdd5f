from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers
from tokenizing import texts

from headrace.core.errors import ModelFileDamaged, UnsupportedModel
from headrace.core.model_files.gguf import GGUFFile
from headrace.core.text.bytelevel import PRE_TOKENIZERS
from headrace.core.text.convert import tokenizer_folder
from headrace.core.text.tokenizer import FolderTokenizer

Make = Callable[..., Any]


@pytest.fixture
def gguf_path(tmp_path: Path, cache_home: Path) -> Path:
    return tmp_path / "model.gguf"


class SlowBPE:
    """An independent encoder: the pattern of llama.cpp's `smollm`, then merges by rank, one at a time."""

    PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def __init__(self, path: Path) -> None:
        self.regex = pytest.importorskip("regex")
        with GGUFFile(path) as file:
            tokens = file.read_array("tokenizer.ggml.tokens", str)
            types = file.read_array("tokenizer.ggml.token_type", int)
            merges = file.read_array("tokenizer.ggml.merges", str)
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
        spare = iter(range(256, 512))
        self.characters = [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]

    def encode(self, text: str) -> list[int]:
        names = "|".join(self.regex.escape(token) for token in self.special)
        ids: list[int] = []
        for piece in self.regex.split(f"({names})", text):
            if piece in self.special:
                ids.append(self.ids[piece])
                continue
            for part in self.regex.split(r"(\p{N})", piece):
                for word in self.regex.findall(self.PATTERN, part):
                    ids += self.merge([self.characters[byte] for byte in word.encode()])
        return ids

    def merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return [self.ids[part] for part in parts if part in self.ids]


def test_H02_the_real_models_ids_equal_an_independent_encoders(smollm2: Path, smol_tokenizer: FolderTokenizer) -> None:
    slow = SlowBPE(smollm2)
    for text in texts(200):
        assert smol_tokenizer.encode(text) == slow.encode(text), repr(text)


def test_H02_autotokenizer_opens_the_folder_and_gives_the_same(smollm2: Path, smol_tokenizer: FolderTokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    auto = transformers.AutoTokenizer.from_pretrained(tokenizer_folder(smollm2))
    for text in texts(200):
        assert auto.encode(text) == smol_tokenizer.encode(text), repr(text)
    assert (auto.eos_token, auto.pad_token, auto.bos_token) == ("<|im_end|>", "<|im_end|>", "<|im_start|>")
    messages = [{"role": "user", "content": "Hi"}]
    prompt = auto.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == smol_tokenizer.render_chat(messages)


def test_H02_facts_of_the_real_tokenizer(smol_tokenizer: FolderTokenizer) -> None:
    assert smol_tokenizer.vocab_size == 49152
    assert smol_tokenizer.eos_ids == (2,)
    assert smol_tokenizer.special_ids == frozenset(range(17))
    assert smol_tokenizer.encode("") == []
    assert smol_tokenizer.encode("a\x04b") == [81, 82]
    assert smol_tokenizer.encode("A 世a") == [49, 216, 7906, 240, 81]
    assert smol_tokenizer.encode("2024") == [smol_tokenizer.encode(digit)[0] for digit in "2024"]


# --- pre-tokenizers, against transformers' own tokenizers of the same vocabulary ---


def vocabulary(path: Path) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    with GGUFFile(path) as file:
        tokens = file.read_array("tokenizer.ggml.tokens", str)
        merges = file.read_array("tokenizer.ggml.merges", str)
    return {token: index for index, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges]


CLASSES = {
    "gpt-2": "GPT2Tokenizer",
    "phi-2": "CodeGenTokenizer",
    "mpt": "GPTNeoXTokenizer",
    "olmo": "GPTNeoXTokenizer",
    "command-r": "CohereTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "deepseek-r1-qwen": "Qwen2Tokenizer",
    "qwen35": "Qwen3_5Tokenizer",
}


@pytest.mark.parametrize(("pre", "name"), CLASSES.items())
def test_a_pre_tokenizer_cuts_like_the_models_own(tokenizer_gguf: Make, gguf_path: Path, pre: str, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    gguf_path.write_bytes(tokenizer_gguf(pre).build())
    ours = FolderTokenizer(tokenizer_folder(gguf_path))
    vocab, merges = vocabulary(gguf_path)
    theirs = getattr(transformers, name)(vocab=vocab, merges=merges)
    theirs.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    for text in texts(200):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), repr(text)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS.keys() - CLASSES.keys() - {"smollm", "starcoder"}))
def test_a_pre_tokenizer_cuts_like_transformers_do_for_gguf_files(pre: str) -> None:
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    theirs = pre_tokenizers.Split(Regex(mapping.GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
    ours = pre_tokenizers.Split(Regex(PRE_TOKENIZERS[pre].pattern or ""), behavior="isolated")
    for text in texts(200):
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), repr(text)


def test_starcoder_cuts_like_smollm() -> None:
    assert PRE_TOKENIZERS["starcoder"] == PRE_TOKENIZERS["smollm"]


def test_llama_bpe_cuts_digits_in_threes_and_begins_with_bos(tokenizer_gguf: Make, gguf_path: Path) -> None:
    converter = pytest.importorskip("transformers.convert_slow_tokenizer").TikTokenConverter()
    gguf_path.write_bytes(tokenizer_gguf("llama-bpe", tokenizer__ggml__add_bos_token=None).build())
    tokenizer = FolderTokenizer(tokenizer_folder(gguf_path))
    cuts = pytest.importorskip("regex").compile(converter.pattern)
    for text in texts(100):
        if "<|" not in text and "|>" not in text:
            apart = [token_id for part in cuts.findall(text) for token_id in tokenizer.encode(part, False)]
            assert tokenizer.encode(text) == [1, *apart], repr(text)


def test_bos_is_added_where_the_file_says_so(tokenizer_gguf: Make, gguf_path: Path) -> None:
    gguf_path.write_bytes(tokenizer_gguf(tokenizer__ggml__add_bos_token=True).build())
    tokenizer = FolderTokenizer(tokenizer_folder(gguf_path))
    assert tokenizer.encode("Hello") == [1, *tokenizer.encode("Hello", add_special_tokens=False)]


def test_user_defined_tokens_are_whole_but_not_special(tokenizer_gguf: Make, gguf_path: Path) -> None:
    tokens = ["a", "b", "<two words>", "<|im_end|>"]
    changed = {"tokens": tokens, "token_type": [1, 1, 4, 1], "merges": []}
    keys = {f"tokenizer__ggml__{key}": value for key, value in changed.items()}
    ids = {f"tokenizer__ggml__{role}_token_id": 3 for role in ("bos", "eos", "padding")}
    gguf_path.write_bytes(tokenizer_gguf(**keys, **ids).build())
    tokenizer = FolderTokenizer(tokenizer_folder(gguf_path))
    assert tokenizer.encode("a<two words>b<|im_end|>") == [0, 2, 1, 3]
    assert tokenizer.decode([0, 2, 1, 3], skip_special_tokens=True) == "a<two words>b"
    assert tokenizer.special_ids == {3}


# --- the folder ---


def test_the_second_start_only_finds_the_folder(tokenizer_gguf: Make, gguf_path: Path, cache_home: Path) -> None:
    gguf_path.write_bytes(tokenizer_gguf().build())
    folder = tokenizer_folder(gguf_path)
    written = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert tokenizer_folder(gguf_path) == folder
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == written
    assert set(written) == {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
    }
    assert list((cache_home / "tokenizers").iterdir()) == [folder]


def test_another_header_gets_another_folder(tokenizer_gguf: Make, gguf_path: Path) -> None:
    gguf_path.write_bytes(tokenizer_gguf().build())
    folder = tokenizer_folder(gguf_path)
    gguf_path.write_bytes(tokenizer_gguf(tokenizer__chat_template="other").build())
    assert tokenizer_folder(gguf_path) != folder


def test_a_model_folder_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"neither tokenizer\.json nor tokenizer\.model"):
        tokenizer_folder(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert tokenizer_folder(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"tokenizer__ggml__model": "bert"},
            UnsupportedModel,
            "tokenizer model 'bert' isn't built in; there are 'gpt2'",
        ),
        ({"tokenizer__ggml__pre": "viking"}, UnsupportedModel, "'viking' isn't built in; there are gpt-2, phi-2"),
        ({"tokenizer__ggml__pre": None}, UnsupportedModel, "pre-tokenizer '' isn't built in"),
        ({"tokenizer__ggml__model": None}, ModelFileDamaged, r"tokenizer\.ggml\.model is missing"),
        (
            {"tokenizer__ggml__tokens": ["a", "a", "b"], "tokenizer__ggml__token_type": [1] * 3},
            ModelFileDamaged,
            "1 tokens of the vocabulary are there twice",
        ),
        ({"tokenizer__ggml__tokens": [1, 2]}, ModelFileDamaged, "holds int, not str"),
        ({"tokenizer__ggml__merges": ["no such"]}, ModelFileDamaged, "the merge 'no such' joins no tokens"),
        ({"tokenizer__ggml__merges": ["nospace"]}, ModelFileDamaged, "the merge 'nospace' joins no tokens"),
        ({"tokenizer__ggml__token_type": [1]}, ModelFileDamaged, "has 1 entries for 277 tokens"),
        ({"tokenizer__ggml__bos_token_id": 4000}, ModelFileDamaged, "bos_token_id is 4000, beyond the 277 tokens"),
    ],
)
def test_H03_a_wrong_tokenizer_is_named_and_leaves_nothing(
    tokenizer_gguf: Make,
    gguf_path: Path,
    cache_home: Path,
    changed: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    gguf_path.write_bytes(tokenizer_gguf(**changed).build())
    with pytest.raises(error, match=message):
        tokenizer_folder(gguf_path)
    assert not (cache_home / "tokenizers").exists()

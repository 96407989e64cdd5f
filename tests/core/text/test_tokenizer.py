import json
import shutil
from pathlib import Path

import pytest

from headrace.core.config import Config, EngineConfig
from headrace.core.errors import ConfigError, InvalidPrompt, ModelFileDamaged, UnsupportedModel
from headrace.core.providers import TextContext
from headrace.core.text.tokenizer import FolderTokenizer
from headrace.plugins.manager import load_plugins


@pytest.fixture
def folder(tiny_tokenizer: FolderTokenizer, tmp_path: Path) -> Path:
    """A copy of the tiny tokenizer's folder, to change."""
    return Path(shutil.copytree(tiny_tokenizer.folder, tmp_path / "folder"))


def test_text_goes_to_ids_and_back(tiny_tokenizer: FolderTokenizer) -> None:
    text = "Hello world, 世界 😀\n"
    assert tiny_tokenizer.decode(tiny_tokenizer.encode(text), skip_special_tokens=True) == text


def test_special_tokens_written_out_become_their_ids(tiny_tokenizer: FolderTokenizer) -> None:
    token_ids = tiny_tokenizer.encode("Hello<|im_end|>")
    assert token_ids[-1] == 2
    assert tiny_tokenizer.decode(token_ids, skip_special_tokens=True) == "Hello"
    assert tiny_tokenizer.decode(token_ids, skip_special_tokens=False) == "Hello<|im_end|>"


def test_token_text_is_each_tokens_own_decode(tiny_tokenizer: FolderTokenizer) -> None:
    for token_id in range(tiny_tokenizer.vocab_size):
        assert tiny_tokenizer.token_text(token_id) == tiny_tokenizer.decode([token_id], skip_special_tokens=False)


def test_text_that_is_no_unicode_is_an_invalid_prompt(tiny_tokenizer: FolderTokenizer) -> None:
    with pytest.raises(InvalidPrompt, match="no valid Unicode"):
        tiny_tokenizer.encode("half a pair \ud800")


def test_A11_all_eos_ids_of_generation_config_count(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert FolderTokenizer(folder).eos_ids == (2, 0)


def test_truncation_and_padding_of_the_file_are_off(folder: Path, tiny_tokenizer: FolderTokenizer) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    content["padding"] = {
        **{"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 2, "pad_type_id": 0, "pad_token": "<|im_end|>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert FolderTokenizer(folder).encode("Hello world!") == tiny_tokenizer.encode("Hello world!")


def test_ids_of_a_padded_vocabulary_have_no_text(folder: Path, tiny_tokenizer: FolderTokenizer) -> None:
    (folder / "config.json").write_text('{"vocab_size": 320}')
    decoder = FolderTokenizer(folder).detokenizer((), False)
    assert decoder.push([319, tiny_tokenizer.encode("a")[0]]) == "a"


def test_a_broken_tokenizer_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFileDamaged, match=r"tokenizer\.json: its tokenizer can't be built"):
        FolderTokenizer(folder)


def test_the_real_chat_template_makes_31_tokens_of_hi(smol_tokenizer: FolderTokenizer) -> None:
    prompt = smol_tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert len(smol_tokenizer.encode(prompt, add_special_tokens=False)) == 31


def test_a_model_without_a_chat_template_says_so(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidPrompt, match="no chat template"):
        FolderTokenizer(folder).render_chat([{"role": "user", "content": "Hi"}])


def test_a_template_may_be_a_file_or_one_of_several(folder: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": [{"name": "tool_use", "template": "?"}, {"name": "default", "template": "A{{ eos_token }}"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert FolderTokenizer(folder).render_chat(messages) == "A<|im_end|>"
    (folder / "chat_template.jinja").write_text("B{{ messages[0]['content'] }}")
    assert FolderTokenizer(folder).render_chat(messages) == "BHi"


def test_H03_a_normalizer_that_multiplies_text_is_refused(folder: Path, tiny_tokenizer: FolderTokenizer) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    times_ten = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    content["normalizer"] = {"type": "Sequence", "normalizers": [times_ten] * 9}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedModel, match="may make 1000000000 characters of one"):
        FolderTokenizer(folder)


def test_H03_a_tokenizer_that_fails_on_a_prompt_refuses_the_prompt(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = split
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InvalidPrompt, match="tokenizer fails on this prompt"):
        FolderTokenizer(folder).encode("x" * 60)


# --- a chat template that a user gives ---

HI = [{"role": "user", "content": "Hi"}]


def test_a_given_template_comes_before_the_models_own(folder: Path) -> None:
    assert FolderTokenizer(folder, "Q: {{ messages[0].content }}{{ eos_token }}").render_chat(HI) == "Q: Hi<|im_end|>"


def test_a_given_template_may_be_a_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat.jinja").write_text("F: {{ messages[0].content }}")
    monkeypatch.chdir(tmp_path)
    assert FolderTokenizer(folder, "chat.jinja").render_chat(HI) == "F: Hi"


@pytest.mark.parametrize("template", ["no/such/file.jinja", "", "a\x00b"])
def test_a_given_template_that_is_no_file_is_a_config_error(folder: Path, template: str) -> None:
    with pytest.raises(ConfigError, match="must be a template or a file with one"):
        FolderTokenizer(folder, template)


def test_a_given_template_that_is_wrong_is_a_config_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.chat_template: the chat template can't be compiled"):
        FolderTokenizer(folder, "{% for message in messages %}")


def test_the_engines_option_reaches_the_tokenizer(folder: Path) -> None:
    config = EngineConfig(chat_template="E: {{ messages[0].content }}")
    tokenizer = load_plugins(Config(config)).build_tokenizer(TextContext(config, folder))
    assert tokenizer.render_chat(HI) == "E: Hi"


def test_H03_a_template_file_that_is_no_text_is_damage(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileDamaged, match="can't be read"):
        FolderTokenizer(folder).render_chat(HI)

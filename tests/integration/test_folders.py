"""What a model's folder says beside its weights, and the options that take its place, in whole engines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakehub import COMMIT
from ggufs import tokenizer_file
from servers import serving

from headrace import LLM, Engine, SamplingParams
from headrace.core.errors import InvalidPrompt
from headrace.core.text.convert import tokenizer_folder

CONFIG = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
RECOMMENDED = {"temperature": 0.25, "top_p": 0.5, "top_k": 3, "repetition_penalty": 1.25}
GREEDY = SamplingParams(temperature=0, max_tokens=6)
MESSAGES = [{"role": "user", "content": "hello world"}]
TEMPLATE = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
OPTIONS: dict[str, Any] = {"load_format": "dummy", "num_kv_blocks": 32, "threads": 1}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tokenizer.json with a byte-level BPE of some 280 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.gguf").write_bytes(tokenizer_file().build())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        return (tokenizer_folder(folder / "tiny.gguf") / "tokenizer.json").read_bytes()


@pytest.fixture
def folder(tokenizer: bytes, tmp_path: Path) -> Path:
    """A folder with config and tokenizer."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(tokenizer)
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def generation_config(folder: Path, **values: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(values))


# --- chat templates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_file", [False, True])
def test_a_given_chat_template_takes_the_place_of_the_folders(is_file: bool, folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("of the folder")
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    given = str(tmp_path / "mine.jinja") if is_file else TEMPLATE
    with LLM(folder, chat_template=given, **OPTIONS) as llm:
        chat, text = llm.chat(MESSAGES, GREEDY, use_tqdm=False), llm.generate("<hello world>", GREEDY, use_tqdm=False)
    assert (chat[0].token_ids, chat[0].usage.prompt_tokens) == (text[0].token_ids, text[0].usage.prompt_tokens)


def test_a_folders_own_chat_template_is_used(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with LLM(folder, **OPTIONS) as llm:
        chat, text = llm.chat(MESSAGES, GREEDY, use_tqdm=False), llm.generate("<hello world>", GREEDY, use_tqdm=False)
    assert chat[0].token_ids == text[0].token_ids


def test_a_folder_without_a_chat_template_refuses_conversations(folder: Path) -> None:
    with LLM(folder, **OPTIONS) as llm, pytest.raises(InvalidPrompt, match="chat template"):
        llm.chat(MESSAGES, GREEDY, use_tqdm=False)


# --- dtype ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "used"), [("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")])
def test_dtype_says_what_a_folders_weights_become(dtype: str, used: str, folder: Path) -> None:
    with LLM(folder, runner="torch", dtype=dtype, **OPTIONS) as llm:
        assert llm.facts.dtype == used
        assert len(llm.generate("hello", GREEDY, use_tqdm=False)[0].token_ids) == 6


# --- revisions --------------------------------------------------------------------------------------------------------

# The hub's library reads its settings when it is imported: each test asks from a process of its own.
ASK = """
import sys
from headrace import LLM, SamplingParams
revision = sys.argv[1] if len(sys.argv) > 1 else None
options = {"load_format": "dummy", "num_kv_blocks": 32, "threads": 1}
with LLM("someone/tiny-model", revision=revision, **options) as llm:
    print(llm.facts.max_model_len)
"""


def test_a_revision_of_a_hub_id_is_the_one_that_runs(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--tiny-model"
    lengths = {"main": 64, "v1": 128}
    for number, (revision, length) in enumerate(lengths.items()):
        commit = f"{number}{COMMIT[1:]}"
        snapshot = repository / "snapshots" / commit
        shutil.copytree(folder, snapshot)
        (snapshot / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": length}))
        (snapshot / "model.safetensors").write_bytes(b"not read")
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    for arguments, length in (([], 64), (["v1"], 128)):
        command = [sys.executable, "-c", ASK, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout.strip() == str(length), done.stderr


# --- generation_config.json -------------------------------------------------------------------------------------------


def test_its_end_of_sequence_ids_end_a_request(folder: Path) -> None:
    with LLM(folder, **OPTIONS) as llm:
        first = llm.generate("hello", GREEDY, use_tqdm=False)[0].token_ids[0]
    generation_config(folder, eos_token_id=[1, first])
    with LLM(folder, **OPTIONS) as llm:
        result = llm.generate("hello", GREEDY, use_tqdm=False)[0]
    assert (result.finish_reason, result.stop_reason) == ("stop", None)
    assert result.usage.completion_tokens == 1


def test_its_sampling_is_given_to_those_who_ask(folder: Path) -> None:
    generation_config(folder, **RECOMMENDED)
    with LLM(folder, **OPTIONS) as llm:
        assert llm.recommended_params() == SamplingParams(**RECOMMENDED)


@pytest.mark.parametrize("applied", ["auto", "none"])
def test_a_server_fills_in_what_requests_leave_out_if_told_so(applied: str, folder: Path) -> None:
    generation_config(folder, **RECOMMENDED)
    body = {"prompt": "hello", "max_tokens": 20, "seed": 3}
    with serving(Engine(folder, processes="inline", **OPTIONS), generation_config=applied) as server:

        def text(**fields: float) -> str:
            return str(server.post("/v1/completions", body | fields).json()["choices"][0]["text"])

        assert (text() == text(**RECOMMENDED)) is (applied == "auto")
        assert text(temperature=0, repetition_penalty=1) == text(temperature=0, repetition_penalty=1, top_k=1)

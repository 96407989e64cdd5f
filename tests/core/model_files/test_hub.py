import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakehub import COMMIT, fake_hub

from headrace.core.model_files.hub import is_hub_id

NAME = "someone/tiny-model"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": b"1",
    "model-00002-of-00002.safetensors": b"2",
    "model.safetensors.index.json": b"{}",
    "pytorch_model.bin": b"not wanted",
    "README.md": b"not wanted",
    "quantised/tiny-Q4_0.gguf": b"GGUF",
}
WANTED = {name: content for name, content in FILES.items() if content != b"not wanted" and "gguf" not in name}

# The library reads its settings when it is imported, so each test asks from a process of its own.
SCRIPT = """
import json, sys
from headrace.core.errors import HeadraceError
from headrace.core.model_files.resolve import pull_model, resolve_model
for call in json.loads(sys.argv[1]):
    try:
        print(json.dumps(["ok", str(globals()[call[0]](*call[1:]))]))
    except HeadraceError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def ask(home: Path, calls: list[list[str]], **environment: str) -> list[list[str]]:
    """Call pull_model or resolve_model in a process of its own; returns what each gave: ok or an error, and text."""
    kinds = ("http_proxy", "https_proxy", "all_proxy")
    proxies = dict.fromkeys([*kinds, *map(str.upper, kinds)], "")
    settings = {"HF_HOME": str(home), "XDG_CACHE_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(calls)],
        env=os.environ | proxies | settings | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_cache(home: Path, files: dict[str, bytes], revision: str = "main") -> Path:
    """Lay out the library's cache by hand, as if the files had been fetched."""
    repository = home / "hub" / ("models--" + NAME.replace("/", "--"))
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / revision).write_text(COMMIT)
    snapshot = repository / "snapshots" / COMMIT
    for name, content in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    return snapshot


def test_a_hub_id_has_two_words_or_ends_with_a_gguf_file() -> None:
    for name in ("a/b", "Qwen/Qwen2.5-0.5B", "a/b/c.gguf", "a/b/folder/c.Q4_0.gguf"):
        assert is_hub_id(name)
    for name in (
        "a",
        "a/b/c",
        "/a/b",
        "a//b",
        "a/../b.gguf",
        "../a/b",
        "a/b/../c.gguf",
        "a b/c",
        "a/b.gguf/",
        "ü/b",
        "",
    ):
        assert not is_hub_id(name)


def test_a_missing_gguf_file_is_not_looked_for_on_the_hub() -> None:
    assert not is_hub_id("models/tiny.gguf")


def test_pulling_fetches_what_is_read_and_nothing_else(tmp_path: Path) -> None:
    with fake_hub(NAME, FILES) as (address, asked):
        calls = [["resolve_model", NAME], ["pull_model", NAME], ["resolve_model", NAME], ["pull_model", NAME, "v1"]]
        before, pulled, found, of_tag = ask(tmp_path, calls, HF_ENDPOINT=address)
    assert before[0] == "ModelNotFound"
    assert f"run: headrace pull {NAME}" in before[1]
    assert pulled == found == of_tag
    assert pulled[0] == "ok"
    folder = Path(pulled[1])
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == WANTED
    assert not any("README" in path or ".bin" in path or "gguf" in path for path in asked)


def test_pulling_one_gguf_file_gives_its_path(tmp_path: Path) -> None:
    name = f"{NAME}/quantised/tiny-Q4_0.gguf"
    with fake_hub(NAME, FILES) as (address, _):
        pulled, found, missing = ask(
            tmp_path,
            [["pull_model", name], ["resolve_model", name], ["pull_model", f"{NAME}/other.gguf"]],
            HF_ENDPOINT=address,
        )
    assert pulled == found
    assert Path(pulled[1]).read_bytes() == b"GGUF"
    assert missing == ["ModelNotFound", f"{NAME} has no other.gguf"]


def test_what_the_hub_does_not_have_is_not_found(tmp_path: Path) -> None:
    with fake_hub(NAME, FILES) as (address, _):
        model, revision = ask(
            tmp_path, [["pull_model", "someone/else"], ["pull_model", NAME, "v2"]], HF_ENDPOINT=address
        )
    assert model[0] == revision[0] == "ModelNotFound"
    assert "the hub has no model 'someone/else'" in model[1]
    assert "no revision 'v2'" in revision[1]


def test_a_repository_without_a_config_says_how_to_name_its_files(tmp_path: Path) -> None:
    with fake_hub(NAME, {"tiny.gguf": b"GGUF", "tokenizer.json": b"{}"}) as (address, _):
        (pulled,) = ask(tmp_path, [["pull_model", NAME]], HF_ENDPOINT=address)
    assert pulled[0] == "ModelNotFound"
    assert f"{NAME}/FILE.gguf" in pulled[1]


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_network_the_cache_is_enough(tmp_path: Path, environment: dict[str, str]) -> None:
    snapshot = make_cache(tmp_path, WANTED)
    calls = [
        ["resolve_model", NAME],
        ["pull_model", NAME],
        ["pull_model", "someone/else"],
        ["resolve_model", NAME, "v1"],
    ]
    found, pulled, missing, of_tag = ask(tmp_path, calls, **environment)
    assert found == pulled == ["ok", str(snapshot)]
    assert missing[0] == "DownloadFailed"
    assert "check the network" in missing[1]
    assert of_tag[0] == "ModelNotFound"
    assert f"headrace pull {NAME} --revision v1" in of_tag[1]


def test_a_revision_names_another_snapshot(tmp_path: Path) -> None:
    snapshot = make_cache(tmp_path, WANTED, "v1")
    of_main, of_tag = ask(tmp_path, [["resolve_model", NAME], ["resolve_model", NAME, "v1"]], HF_HUB_OFFLINE="1")
    assert of_main[0] == "ModelNotFound"
    assert of_tag == ["ok", str(snapshot)]


def test_only_hub_ids_have_revisions(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.gguf").touch()
    catalogue = "smollm2-135m-instruct"
    calls = [["resolve_model", name, "v1"] for name in (str(tmp_path), str(tmp_path / "a.gguf"), catalogue)]
    for kind, message in ask(tmp_path, [*calls, ["pull_model", catalogue, "v1"]]):
        assert (kind, message.split(",")[0]) == ("ConfigError", "engine.revision is 'v1'")

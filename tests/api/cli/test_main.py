import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.config import Config

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)


def test_the_help_lists_the_commands(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("generate", "chat", "serve", "trace", "pull", "plugins", "config"))


def test_the_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headrace 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["config", "--policy", "fcsf"],
            "headrace: use.policy is 'fcsf', which no plugin provides; did you mean 'fcfs'?",
        ),
        (["config", "--config", "nowhere.toml"], "headrace: config file nowhere.toml can't be read: No such file"),
        (["plugins", "--block-size", "0"], "headrace: engine.block_size is 0, must be at least 1"),
        (["--log-level", "loud", "config"], "headrace: --log-level is 'loud', must be debug, info, warning or error"),
        (["pull", "no-such-model"], "headrace: 'no-such-model' isn't in the catalogue: smollm2-135m-instruct"),
        (["generate", "--top-p", "2", "--prompt", "x"], "headrace: top_p is 2.0, must be above 0 and at most 1"),
        (["generate", "no-such-model", "--prompt", "x"], "headrace: 'no-such-model' is no model folder"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_an_unknown_command_is_bad_input() -> None:
    assert main(["genrate"]) == 2


def test_config_prints_what_it_reads_back_as(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "plugins.toml").write_text(
        '[engine]\nblock_size = 8\n[use]\nrunner = "sim"\n[options.runner]\nbase_s = 1\n'
    )
    assert main(["config", "--policy", "priority", "--option", "runner.per_token_s=0"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["engine"]["block_size"] == 8
    assert printed["use"] | {"policy": "priority", "runner": "sim"} == printed["use"]
    assert printed["options"]["runner"]["base_s"] == 1
    assert printed["options"]["runner"]["per_token_s"] == 0


def test_config_says_where_each_value_comes_from(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "plugins.toml").write_text("[engine]\nblock_size = 8")
    main(["config", "--policy", "priority"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "=" in line}
    assert lines["block_size"].endswith("# file")
    assert lines["policy"].endswith("# argument")
    assert lines["max_num_seqs"].endswith("# default")


def test_without_a_file_config_prints_the_defaults(capsys: Capture) -> None:
    main(["config"])
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["engine"]["max_num_seqs"] == Config().engine.max_num_seqs


def test_plugins_stars_what_is_in_use(capsys: Capture) -> None:
    assert main(["plugins", "--policy", "priority"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    starred = [line[line.index("*") + 1] for line in lines if "*" in line]
    assert starred == ["table", "priority", "paged", "auto", "ngram", "huggingface", "paged"]


def test_the_installed_command_reports_a_bad_input_by_its_exit_code() -> None:
    command = [str(Path(sys.executable).parent / "headrace"), "config", "--kv", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr

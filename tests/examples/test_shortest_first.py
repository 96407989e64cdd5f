"""The example package, installed as users would and used by one line in plugins.toml."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packages import EXAMPLES, install_example, run_own_tests

from headrace.cli.main import main
from headrace.core.config import load_config
from headrace.core.errors import ConfigError
from headrace.plugins.manager import load_plugins

EXAMPLE = EXAMPLES / "headrace-shortest-first"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own."""
    return install_example(EXAMPLE.name, tmp_path_factory.mktemp("example"))


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the package where Python finds it, and return an empty folder to work in."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "headrace_shortest_first", raising=False)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ORDER = """
import asyncio
from headrace import Engine, SamplingParams
from headrace.ask import ask_prompt

async def read(stream, max_tokens):
    await stream.result()
    print(max_tokens)

async def main():
    lengths = 9, 5, 2
    async with Engine(runner="kvhash", tokenizer="symbols", max_num_seqs=1) as engine:
        streams = engine.submit([ask_prompt("same", SamplingParams(max_tokens=length)) for length in lengths])
        await asyncio.gather(*map(read, streams, lengths))

if __name__ == "__main__":
    asyncio.run(main())
"""
"""Submits requests of 9, 5 and 2 tokens, which run one at a time; prints their lengths as they finish."""


def finishing_order(site: Path, folder: Path) -> list[int]:
    (folder / "order.py").write_text(ORDER)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "order.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_one_line_in_the_config_changes_the_order_of_requests(site: Path, installed: Path) -> None:
    assert finishing_order(site, installed) == [9, 5, 2]
    (installed / "plugins.toml").write_text('[use]\npolicy = "shortest-first"\n')
    assert finishing_order(site, installed) == [2, 5, 9]


def test_the_plugin_is_listed_with_package_and_version(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--policy", "shortest-first"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "shortest-first" in line)
    assert line.split()[:4] == ["*", "shortest-first", "headrace-shortest-first", "1.0"]


def test_its_options_are_checked_before_a_model_loads(installed: Path) -> None:
    config = load_config(overrides={"policy": "shortest-first"}, options={"policy": {"count": "words"}})
    with pytest.raises(
        ConfigError, match=r"options.policy.count is 'words': must be one of 'prompt', 'output', 'both'"
    ):
        load_plugins(config)


def test_disabled_it_provides_nothing(installed: Path) -> None:
    (installed / "plugins.toml").write_text('[plugins]\ndisable = ["shortest-first"]\n')
    assert list(load_plugins(load_config()).providers["policy"]) == ["fcfs", "priority"]


def test_its_own_tests_pass(site: Path) -> None:
    run_own_tests(EXAMPLE.name, site)

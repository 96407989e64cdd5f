"""The example package, installed as users would and used by one line in plugins.toml."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import Engine, SamplingParams
from headrace.ask import ask_prompt
from headrace.cli.main import main
from headrace.core.config import load_config
from headrace.core.errors import ConfigError
from headrace.plugins.manager import load_plugins

EXAMPLE = Path(__file__).parents[2] / "examples" / "headrace-shortest-first"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder of its own; built from a copy, because a build leaves files behind."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", "site", "./source"], cwd=folder, check=True, timeout=120)
    return folder / "site"


@pytest.fixture
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the package where Python finds it, and return an empty folder to work in."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "headrace_shortest_first", raising=False)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finishing_order() -> list[int]:
    """Run three requests of 9, 5 and 2 tokens, submitted in this order, one at a time; return their max_tokens."""

    async def run() -> list[int]:
        finished: list[int] = []
        async with Engine(runner="kvhash", tokenizer="symbols", max_num_seqs=1) as engine:

            async def read(stream: object, max_tokens: int) -> None:
                await stream.result()  # type: ignore[attr-defined]
                finished.append(max_tokens)

            lengths = (9, 5, 2)
            streams = engine.submit([ask_prompt("same", SamplingParams(max_tokens=length)) for length in lengths])
            await asyncio.gather(*[read(stream, length) for stream, length in zip(streams, lengths, strict=True)])
        return finished

    return asyncio.run(run())


def test_one_line_in_the_config_changes_the_order_of_requests(installed: Path) -> None:
    assert finishing_order() == [9, 5, 2]
    (installed / "plugins.toml").write_text('[use]\npolicy = "shortest-first"\n')
    assert finishing_order() == [2, 5, 9]


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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    environment = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout

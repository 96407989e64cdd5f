"""What the README shows is run: commands that start with headrace, Python blocks, config files, links."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.config import load_config
from headrace.plugins.manager import load_plugins

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines() if line.startswith("headrace")
]
HANG_GUARD_S = 120


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def run(command: list[str], folder: Path) -> str:
    """Run a command as a user would: nothing on standard input, the environment's own programs first."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=HANG_GUARD_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str, tmp_path: Path) -> None:
    assert run(["bash", "-c", command], tmp_path)


@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("code", blocks("python"))
def test_every_python_block_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(code)
    assert run([sys.executable, "block.py"], tmp_path)


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_config_is_sound(text: str, tmp_path: Path) -> None:
    (tmp_path / "plugins.toml").write_text(text)
    load_plugins(load_config(tmp_path / "plugins.toml"))


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake (\w+)", README))
    assert {"demo", "test"} <= targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_link_leads_to_a_file(file: str) -> None:
    page = ROOT / file
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []

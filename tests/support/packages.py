"""Plugins in packages: the examples, installed as users would, and packages made on the spot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def install_example(name: str, folder: Path) -> Path:
    """Install an example below `folder`, built from a copy, because a build leaves files behind; returns where."""
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    shutil.copytree(EXAMPLES / name, folder / "source", ignore=ignore)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", "site", "./source"], cwd=folder, check=True, timeout=120)
    return folder / "site"


def run_own_tests(name: str, site: Path) -> None:
    """Run the tests that come with an example, beside the installed package."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / name / "tests")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def make_package(folder: Path, plugin: str, source: str) -> Path:
    """Lay out a package with one module and one entry point as if it were installed; returns where."""
    module = f"headrace_{plugin}"
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headrace-{plugin}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[headrace]\n{plugin} = {module}\n")
    return folder

"""Who may import whom: the rules of docs/architecture.md, read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "core", "kv", "plugins", "runners", "schedulers")
OURS = {
    "core": ("headrace.core",),
    "kv": ("headrace.core", "headrace.kv"),
    "schedulers": ("headrace.core", "headrace.schedulers"),
    "runners": ("headrace.core", "headrace.runners", "headrace.kv.layout"),
    "plugins": ("headrace.core", "headrace.plugins"),
    "api": ("headrace",),
}
INSIDE_FUNCTIONS = {
    "plugins/builtin.py": ("headrace.kv", "headrace.schedulers", "headrace.runners"),
    "plugins/testing.py": ("headrace.kv", "headrace.schedulers", "headrace.runners"),
}
FOREIGN = {
    "api": ("torch", "transformers"),
    "core": ("torch", "transformers", "safetensors", "pluggy", "typer", "rich"),
    "kv": ("torch", "transformers", "asyncio"),
    "plugins": ("torch", "transformers"),
    "runners": ("pluggy", "typer", "rich"),
    "schedulers": ("torch", "transformers", "asyncio", "threading"),
}
"""What each folder must not import, not even inside a function."""


class Import(NamedTuple):
    module: str
    line: int
    in_function: bool


def imports(tree: ast.AST, in_function: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, in_function)
        elif isinstance(node, ast.ImportFrom):
            parent = "." * node.level + (node.module or "")
            for alias in node.names:
                yield Import(f"{parent}.{alias.name}", node.lineno, in_function)
        else:
            yield from imports(node, in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def violations(file: str, source: str) -> list[str]:
    folder = file.split("/", maxsplit=1)[0]
    wrong = []
    for module, line, in_function in imports(ast.parse(source)):
        allowed = OURS[folder] + (INSIDE_FUNCTIONS.get(file, ()) if in_function else ())
        if module.startswith("."):
            wrong.append(f"{file}:{line} imports {module}: imports are absolute")
        elif is_inside(module, FOLDERS):
            wrong.append(f"{file}:{line} imports {module}: write headrace.{module}")
        elif is_inside(module, FOREIGN[folder]):
            wrong.append(f"{file}:{line} imports {module}: not in {folder}/")
        elif is_inside(module, ("headrace",)) and not is_inside(module, allowed):
            wrong.append(f"{file}:{line} imports {module}: {folder}/ may import {', '.join(allowed)}")
    return wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_imports_only_what_it_may(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [wrong for file in files for wrong in violations(str(file.relative_to(ROOT)), file.read_text())] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/x.py", "import headrace.kv.pool"),
        ("core/x.py", "from headrace import Engine"),
        ("core/x.py", "def f():\n    import torch"),
        ("core/x.py", "from . import errors"),
        ("kv/x.py", "import core.errors"),
        ("kv/x.py", "from headrace.schedulers import plain"),
        ("schedulers/x.py", "from asyncio import Queue"),
        ("schedulers/x.py", "import headrace.runners"),
        ("runners/x.py", "from headrace.kv.pool import BlockPool"),
        ("plugins/builtin.py", "from headrace.kv.paged import PagedKV"),
        ("plugins/manager.py", "def f():\n    from headrace.kv.paged import PagedKV"),
    ],
)
def test_a_broken_rule_is_found(file: str, source: str) -> None:
    assert len(violations(file, source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("runners/x.py", "from headrace.kv.layout import slots"),
        ("plugins/builtin.py", "def f():\n    from headrace.kv.paged import PagedKV"),
        ("api/x.py", "from headrace.runners import worker"),
        ("core/x.py", "import asyncio\nfrom headrace.core import errors"),
    ],
)
def test_what_is_allowed_passes(file: str, source: str) -> None:
    assert violations(file, source) == []


def test_the_package_of_the_runners_is_empty() -> None:
    assert (ROOT / "runners" / "__init__.py").read_text() == ""


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {module.split(".", maxsplit=1)[0] for module in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    ["import headrace", "from headrace import SamplingParams", "import headrace.core.messages, headrace.core.config"],
)
def test_importing_headrace_loads_no_heavy_library(statement: str) -> None:
    heavy = {"torch", "transformers", "typer", "rich", "tokenizers", "huggingface_hub", "gguf", "jinja2", "pluggy"}
    assert loaded_by(statement) & heavy == set()


def test_the_command_starts_without_torch_and_transformers() -> None:
    heavy = {"torch", "transformers", "tokenizers", "huggingface_hub", "gguf", "jinja2"}
    heavy |= {"starlette", "uvicorn", "aiohttp"}
    assert loaded_by("import headrace.cli.main") & heavy == set()

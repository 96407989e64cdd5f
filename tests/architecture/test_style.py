"""Habits of the source that a tool can see."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "core", "kv", "plugins", "runners", "schedulers")
SOURCES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
LONG = 400


def test_a_file_over_400_lines_gives_its_reason() -> None:
    long = [file for file in SOURCES if len(file.read_text().splitlines()) > LONG]
    assert [file for file in long if "Long because" not in (ast.get_docstring(ast.parse(file.read_text())) or "")] == []


def test_names_say_what_is_inside() -> None:
    assert [file for file in SOURCES if file.stem in {"utils", "util", "helpers", "misc", "common"}] == []


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_only_the_config_reads_the_environment() -> None:
    """Beside it, the cache folder follows the desktop's own standard."""
    readers = [file for file in SOURCES if "os.environ" in file.read_text() or "getenv" in file.read_text()]
    assert [str(file.relative_to(ROOT)) for file in readers] == ["core/config.py", "core/model_files/cache.py"]

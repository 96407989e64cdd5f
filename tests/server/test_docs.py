"""docs/server.md says what is true."""

import re
from pathlib import Path

from typer.main import get_command

from headrace.cli.main import app
from headrace.server.openapi import OPERATIONS
from headrace.server.requests import CompletionRequest

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def options_of(*names):
    command = get_command(app)
    for name in names:
        command = command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def test_every_option_it_names_exists():
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT)) - {"--help"}
    assert named <= options_of("serve") | options_of("bench", "serve")


def test_every_option_of_the_server_is_named():
    shared = options_of("generate") | {"--help"}
    assert {option for option in options_of("serve") - shared if not option.startswith("--no-")} <= set(
        re.findall(r"--[a-z][a-z-]+", TEXT)
    )


def test_every_endpoint_and_extra_field_is_named():
    missing = [operation.path for operation in OPERATIONS if operation.path.split("/{")[0] not in TEXT]
    assert missing == []
    extra = re.search(r"Fields beside OpenAI's.*?\n\n", TEXT, re.DOTALL)[0]
    named = set(re.findall(r"`(\w+)`", extra)) - {"tools"}
    assert named <= set(CompletionRequest.__struct_fields__)


def test_every_metric_it_names_exists(server):
    page = server.get("/metrics").body.decode()
    metrics = TEXT[TEXT.index("## Metrics") : TEXT.index("## Measuring")]
    for name in set(re.findall(r"`(\w+)`", metrics)) - {"finished_reason"}:
        assert f"headrace:{name}" in page

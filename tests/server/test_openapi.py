"""The document and its page."""

import re

from headrace.server.app import make_app
from headrace.server.openapi import OPERATIONS, make_schema
from headrace.server.options import ServerOptions
from headrace.server.page import render
from headrace.server.service import Service


def references(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from [item] if key == "$ref" else references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_path_of_the_server_is_described():
    service = Service(None, ServerOptions())
    paths = {route.path.replace(":path", "") for route in make_app(service).routes}
    assert {operation.path for operation in OPERATIONS} == paths - {"/docs", "/openapi.json"}


def test_every_reference_leads_somewhere():
    schema = make_schema()
    known = {f"#/components/schemas/{name}" for name in schema["components"]["schemas"]}
    assert set(references(schema)) <= known


def test_fields_are_described_by_their_docs():
    properties = make_schema()["components"]["schemas"]["CompletionRequest"]["properties"]
    assert "before the text" in properties["echo"]["description"]
    assert "greedy" in properties["temperature"]["description"]
    assert "tenant" in properties["policy_args"]["description"]


def test_the_page_needs_nothing_from_elsewhere(server):
    page = server.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page.body.decode()) == []
    assert "POST /v1/chat/completions" in page.body.decode()
    assert server.get("/openapi.json").json()["openapi"].startswith("3.")
    assert render(make_schema()) == page.body.decode()

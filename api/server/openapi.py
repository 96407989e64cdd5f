"""/openapi.json and /docs, made of the Structs that requests and answers are decoded into, with their docstrings."""

from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headrace.cli.options import field_docs
from headrace.core.params import SamplingParams
from headrace.server.errors import ErrorBody
from headrace.server.page import render
from headrace.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from headrace.server.responses import (
    ChatChunk,
    ChatCompletion,
    Completion,
    DetokenizeAnswer,
    Health,
    Model,
    ModelList,
    TokenizeAnswer,
    Trace,
    Version,
)

Json = dict[str, Any]


class Operation(Struct, frozen=True):
    """One path of the API."""

    method: str
    path: str
    summary: str
    body: type[Struct] | None
    answer: type[Struct] | None
    """None: text."""
    event: type[Struct] | None = None
    """Of a streamed answer."""


OPERATIONS = (
    Operation("post", "/v1/completions", "Continue prompts.", CompletionRequest, Completion, Completion),
    Operation("post", "/v1/chat/completions", "Answer a conversation.", ChatRequest, ChatCompletion, ChatChunk),
    Operation("get", "/v1/models", "List the names the model is served by.", None, ModelList),
    Operation("get", "/v1/models/{name}", "Tell about one name.", None, Model),
    Operation("post", "/tokenize", "Return a prompt's token ids.", TokenizeRequest, TokenizeAnswer),
    Operation("post", "/detokenize", "Return the text of token ids.", DetokenizeRequest, DetokenizeAnswer),
    Operation("get", "/health", "Tell whether the engine gets on: 200 or 503.", None, Health),
    Operation("get", "/metrics", "Return Prometheus text.", None, None),
    Operation("get", "/trace", "Return what every process did lately, as Perfetto opens it.", None, Trace),
    Operation("get", "/version", "Tell the version.", None, Version),
)


class Docs:
    """Owner of the schema and its page, both made when they are first asked for."""

    def __init__(self) -> None:
        self._schema: Json | None = None

    async def schema(self, _request: Request) -> Response:
        """Answer /openapi.json."""
        return Response(msgspec.json.encode(self._made()), media_type="application/json")

    async def page(self, _request: Request) -> Response:
        """Answer /docs."""
        return HTMLResponse(render(self._made()))

    def _made(self) -> Json:
        if self._schema is None:
            self._schema = make_schema()
        return self._schema


def make_schema() -> Json:
    """Build the OpenAPI document."""
    structs = {struct for each in OPERATIONS for struct in (each.body, each.answer, each.event) if struct} | {ErrorBody}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    for struct in ordered:
        _describe_fields(components[struct.__name__], struct)
    paths: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version("headrace")},
        "paths": paths,
        "components": {"schemas": components},
    }


def _describe_fields(schema: Json, struct: type[Struct]) -> None:
    docs = field_docs(SamplingParams) if issubclass(struct, GenerationRequest) else {}
    for base in reversed(struct.__mro__):
        if base is not Struct and issubclass(base, Struct):
            docs |= field_docs(base)
    for name, text in docs.items():
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = text


def _operation(operation: Operation) -> Json:
    content: Json = {"text/plain": {"schema": {"type": "string"}}}
    if operation.answer:
        content = {"application/json": {"schema": _ref(operation.answer)}}
    if operation.event:
        content["text/event-stream"] = {"schema": _ref(operation.event)}
    error = {"description": "Refused or failed.", "content": {"application/json": {"schema": _ref(ErrorBody)}}}
    described: Json = {
        "summary": operation.summary,
        "responses": {"200": {"description": "Done.", "content": content}, "default": error},
    }
    if operation.body:
        body = {"required": True, "content": {"application/json": {"schema": _ref(operation.body)}}}
        described["requestBody"] = body
    if "{name}" in operation.path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return described


def _ref(struct: type[Struct]) -> Json:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}

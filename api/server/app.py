"""The ASGI application: paths, and what stands in front of them."""

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from headrace.core.errors import HeadraceError
from headrace.server.answer import answer
from headrace.server.body import decode_body
from headrace.server.chat import chat_job
from headrace.server.completions import completion_job
from headrace.server.endpoint import Door, Endpoint
from headrace.server.errors import answer_error, answer_http_exception
from headrace.server.info import Info
from headrace.server.openapi import Docs
from headrace.server.reply import Reply
from headrace.server.requests import ChatRequest, CompletionRequest
from headrace.server.service import Service


def make_app(service: Service) -> Starlette:
    """Build the application of one server process; its engine is started and closed by others."""
    info, generation, docs = Info(service), Generation(service), Docs()
    routes = [
        Route("/v1/completions", Endpoint(service, generation.complete), methods=["POST"]),
        Route("/v1/chat/completions", Endpoint(service, generation.chat), methods=["POST"]),
        Route("/v1/models", info.models),
        Route("/v1/models/{name:path}", info.model),
        Route("/tokenize", Endpoint(service, info.tokenize), methods=["POST"]),
        Route("/detokenize", Endpoint(service, info.detokenize), methods=["POST"]),
        Route("/health", info.health),
        Route("/metrics", info.metrics),
        Route("/trace", info.trace),
        Route("/version", info.version),
        Route("/openapi.json", docs.schema),
        Route("/docs", docs.page),
    ]
    middleware = [Middleware(Door, service=service)]
    if origins := service.options.allow_origins:
        cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    handlers = {HeadraceError: answer_error, HTTPException: answer_http_exception, Exception: answer_error}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


class Generation:
    """The two endpoints that generate."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def complete(self, body: bytes, headers: Headers, reply: Reply) -> None:
        """Answer POST /v1/completions."""
        request = decode_body(body, headers, CompletionRequest)
        self._service.check_model(request.model)
        job = await completion_job(request, self._service)
        await answer(job, self._service, reply)

    async def chat(self, body: bytes, headers: Headers, reply: Reply) -> None:
        """Answer POST /v1/chat/completions."""
        request = decode_body(body, headers, ChatRequest)
        self._service.check_model(request.model)
        await answer(chat_job(request, self._service), self._service, reply)

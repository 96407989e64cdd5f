"""Endpoints that answer at once: models, tokenizing, health, version, metrics."""

import asyncio
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import HeadraceError, InvalidParameter
from headrace.core.prompts import ChatPrompt, Prompt, TextPrompt
from headrace.core.trace import chrome_trace
from headrace.server.body import decode_body
from headrace.server.errors import HttpError
from headrace.server.metrics import CONTENT_TYPE
from headrace.server.reply import Reply
from headrace.server.requests import DetokenizeRequest, TokenizeRequest
from headrace.server.responses import DetokenizeAnswer, Health, Model, ModelList, TokenizeAnswer, Version
from headrace.server.service import Service

TRACE_TIMEOUT_S = 10.0
"""How long the engine may take to collect its spans."""


class Info:
    """Owner of nothing: reads the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _request: Request) -> Response:
        """List the names the model is served by."""
        return _json(ModelList([self._model(name) for name in self._service.options.model_names]))

    async def model(self, request: Request) -> Response:
        """Tell about one name."""
        name = request.path_params["name"]
        self._service.check_model(name)
        return _json(self._model(name))

    def _model(self, name: str) -> Model:
        service = self._service
        limit = service.engine.facts.max_model_len
        return Model(id=name, created=service.started, root=service.root, max_model_len=limit)

    async def version(self, _request: Request) -> Response:
        """Tell the version."""
        return _json(Version(version("headrace")))

    async def health(self, _request: Request) -> Response:
        """Tell whether the engine gets on with its work: a message round all of its parts, with a timeout."""
        health = await self._health()
        return _json(health, 200 if health.status == "ok" else 503)

    async def _health(self) -> Health:
        service = self._service
        if service.is_draining:
            return Health("draining")
        try:
            pong = await asyncio.wait_for(service.engine.ping(), service.options.health_timeout_s)
        except TimeoutError:
            return Health("silent", reason=f"no answer in {service.options.health_timeout_s:g} s (--health-timeout)")
        except HeadraceError as error:
            return Health("closed", reason=str(error))
        limit = service.options.stall_limit_s
        if max(pong.ready_age_s, pong.step_age_s) > limit:
            return Health("stalled", pong.ready_age_s, pong.step_age_s, f"no progress for {limit:g} s (--stall-limit)")
        return Health("ok", pong.ready_age_s, pong.step_age_s)

    async def metrics(self, _request: Request) -> Response:
        """Return Prometheus text; without the engine's figures where it doesn't answer."""
        try:
            stats = await asyncio.wait_for(self._service.engine.stats(), self._service.options.health_timeout_s)
        except (TimeoutError, HeadraceError):
            stats = None
        return Response(self._service.metrics.text(stats), headers={"content-type": CONTENT_TYPE})

    async def trace(self, _request: Request) -> Response:
        """Return what every process did lately, as Perfetto opens it."""
        try:
            spans = await asyncio.wait_for(self._service.engine.trace(), TRACE_TIMEOUT_S)
        except TimeoutError:
            raise HttpError(503, f"the engine gave no answer in {TRACE_TIMEOUT_S:g} s; see /health") from None
        return await asyncio.to_thread(lambda: _json(chrome_trace(spans)))

    async def tokenize(self, body: bytes, headers: Headers, reply: Reply) -> None:
        """Answer POST /tokenize."""
        request = decode_body(body, headers, TokenizeRequest)
        self._service.check_model(request.model)
        engine = self._service.engine
        tokenized = await engine.tokenize(
            _prompt(request), add_special_tokens=request.add_special_tokens, with_texts=request.return_token_strs
        )
        token_ids = tokenized.token_ids
        limit = engine.facts.max_model_len
        await reply.json(TokenizeAnswer(len(token_ids), limit, token_ids, tokenized.texts))

    async def detokenize(self, body: bytes, headers: Headers, reply: Reply) -> None:
        """Answer POST /detokenize."""
        request = decode_body(body, headers, DetokenizeRequest)
        self._service.check_model(request.model)
        await reply.json(DetokenizeAnswer(await self._service.engine.detokenize(request.tokens)))


def _prompt(request: TokenizeRequest) -> Prompt:
    match request.prompt, request.messages:
        case str(text), None:
            return TextPrompt(text)
        case None, list(messages):
            return ChatPrompt(tuple(messages))
    raise InvalidParameter("prompt and messages: give one of them", "prompt")


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")

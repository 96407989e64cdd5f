"""headrace serve: a model as a server with OpenAI's API."""

from typing import Annotated, Any, Literal

import typer

from headrace.cli.options import takes_options
from headrace.server.options import ServerOptions

_DEFAULT = ServerOptions()


def _option(text: str, flag: str | None = None) -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Server")


@takes_options
def serve(
    model: Annotated[str | None, typer.Argument(help="Model folder, GGUF file, catalogue name or hub id.")] = None,
    host: Annotated[str, _option("Address to listen on; 0.0.0.0 is every one.")] = _DEFAULT.host,
    port: Annotated[int, _option("Port to listen on; 0 takes a free one.")] = _DEFAULT.port,
    uds: Annotated[str | None, _option("Path of a Unix socket to listen on instead.")] = None,
    api_server_count: Annotated[
        int, _option("Server processes that share the engine and the port.")
    ] = _DEFAULT.api_server_count,
    api_key: Annotated[list[str] | None, _option("Requests must carry it as bearer token; repeatable.")] = None,
    served_model_name: Annotated[
        list[str] | None, _option("What requests call the model, instead of MODEL; repeatable, answers say the first.")
    ] = None,
    generation_config: Annotated[
        Literal["none", "auto"], _option("auto: sampling that requests leave out is as the model's makers recommend.")
    ] = _DEFAULT.generation_config,
    allow_origin: Annotated[
        list[str] | None, _option('Web origin whose pages may use the API, "*" for all; repeatable.')
    ] = None,
    max_body_bytes: Annotated[int, _option("Longest request body; longer ones get 413.")] = _DEFAULT.max_body_bytes,
    max_open_requests: Annotated[
        int | None, _option("HTTP requests answered at once; more get 429. See also --max-queued-requests (503).")
    ] = None,
    drain_timeout: Annotated[
        float, _option("Seconds that open requests may go on after SIGTERM.")
    ] = _DEFAULT.drain_timeout_s,
    health_timeout: Annotated[
        float, _option("Seconds that /health waits for the engine's answer.")
    ] = _DEFAULT.health_timeout_s,
    stall_limit: Annotated[
        float, _option("Seconds without progress on ready work after which /health says 503.")
    ] = _DEFAULT.stall_limit_s,
    *,
    engine: dict[str, Any],
) -> None:
    """Serve a model with OpenAI's API; /docs tells about it."""
    import sys

    from headrace import Engine
    from headrace.server.run import run
    from headrace.server.run import serve as serve_one

    root = model or "headrace"
    options = ServerOptions(
        host=host,
        port=port,
        uds=uds,
        api_server_count=api_server_count,
        api_keys=tuple(api_key or ()),
        model_names=tuple(served_model_name or (root,)),
        generation_config=generation_config,
        allow_origins=tuple(allow_origin or ()),
        max_body_bytes=max_body_bytes,
        max_open_requests=max_open_requests,
        drain_timeout_s=drain_timeout,
        health_timeout_s=health_timeout,
        stall_limit_s=stall_limit,
    )
    one = Engine(model, **engine)
    if api_server_count == 1:
        code = run(options, lambda listener, stop: serve_one(one, options, listener, root, _announce, stop))
    else:
        from headrace.server.many import serve_many

        code = run(options, lambda *given: serve_many(one.config, model, options, root, _announce, *given))
    if code:
        sys.exit(code)


def _announce(address: str) -> None:
    print(f"headrace serves at {address}", flush=True)

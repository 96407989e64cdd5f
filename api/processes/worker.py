"""The worker process: a runner whose model is many small Python calls, away from the core's GIL."""

import asyncio

import zmq

from headrace.core.links import Inbound, Outbound
from headrace.core.messages import RunStep, StepDone
from headrace.core.process import Parent, Spec, run_child, socket_path
from headrace.launch import Builder
from headrace.runners.remote import StepServer


async def main(parent: Parent, spec: Spec) -> None:
    """Serve until cancelled: steps are computed on the runner's own thread, nothing is left for this loop."""
    runner = Builder.from_spec(spec).runner()
    facts = await asyncio.to_thread(runner.load)
    context = zmq.Context()
    to_core: Outbound[StepDone] = Outbound(context, socket_path(spec.directory, "steps"))
    server = StepServer(runner, to_core)
    Inbound(context, socket_path(spec.directory, "worker"), RunStep, server.take)
    parent.ready(facts)
    try:
        await asyncio.Event().wait()
    finally:
        runner.close()


if __name__ == "__main__":
    run_child(main)

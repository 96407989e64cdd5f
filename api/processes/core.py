"""The core process: scheduler, KV manager and the engine's loop; also the runner, where it holds no GIL."""

import asyncio

import zmq

from headrace.core.interfaces import Runner
from headrace.core.links import Inbound, Outbound
from headrace.core.messages import RunStep, StepDone, ToCore, ToOutput
from headrace.core.process import Parent, Spec, run_child, socket_path
from headrace.launch import Builder
from headrace.runners.remote import RemoteRunner


async def main(parent: Parent, spec: Spec) -> None:
    """Serve until cancelled."""
    builder = Builder.from_spec(spec)
    context = zmq.Context()
    runner = builder.runner() if builder.runs_in_core() else await _remote_runner(parent, spec, context)
    facts = await asyncio.to_thread(runner.load)
    to_output: Outbound[ToOutput] = Outbound(context, socket_path(spec.directory, "output"))
    core = builder.core(runner, builder.scheduler(facts), to_output.send)
    Inbound(context, socket_path(spec.directory, "core"), ToCore, core.inbox.buffer.extend)
    parent.ready(facts)
    try:
        await core.run()
    finally:
        runner.close()


async def _remote_runner(parent: Parent, spec: Spec, context: "zmq.Context[zmq.Socket[bytes]]") -> Runner:
    to_worker: Outbound[RunStep] = Outbound(context, socket_path(spec.directory, "worker"))
    runner = RemoteRunner(await parent.facts(), to_worker)
    Inbound(context, socket_path(spec.directory, "steps"), StepDone, runner.take)
    return runner


if __name__ == "__main__":
    run_child(main)

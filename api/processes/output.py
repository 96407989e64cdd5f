"""The output process: tokens become text."""

import zmq

from headrace.core.channel import Inbox
from headrace.core.links import Inbound, Outbound
from headrace.core.messages import FrontendGone, StopHit, ToFrontend, ToOutput
from headrace.core.output import OutputActor
from headrace.core.process import Parent, Spec, run_child, socket_path
from headrace.launch import Builder


async def main(parent: Parent, spec: Spec) -> None:
    """Serve until cancelled."""
    tokenizer = Builder.from_spec(spec).tokenizer()
    context = zmq.Context()
    to_core: Outbound[StopHit] = Outbound(context, socket_path(spec.directory, "core"))
    frontends: dict[int, Outbound[ToFrontend]] = {}
    gone: set[int] = set()

    def send_frontend(number: int, messages: list[ToFrontend]) -> None:
        if number in gone:
            return
        if number not in frontends:
            frontends[number] = Outbound(context, socket_path(spec.directory, f"frontend-{number}"))
        frontends[number].send(*messages)

    actor = OutputActor(tokenizer, send_frontend, to_core.send)
    inbox: Inbox[ToOutput] = Inbox()
    Inbound(context, socket_path(spec.directory, "output"), ToOutput, inbox.buffer.extend)
    parent.ready()

    def handle(messages: list[ToOutput]) -> None:
        actor.handle(messages)
        for message in messages:
            if isinstance(message, FrontendGone):
                gone.add(message.frontend)
                if link := frontends.pop(message.frontend, None):
                    link.close()

    await inbox.serve(handle)


if __name__ == "__main__":
    run_child(main)

"""The input process: prompts become token ids."""

import zmq

from headrace.core.channel import Inbox
from headrace.core.links import Inbound, Outbound
from headrace.core.messages import ToCore, ToInput
from headrace.core.process import Parent, Spec, run_child, socket_path
from headrace.core.tokenizing import TokenizingPool
from headrace.launch import Builder


async def main(parent: Parent, spec: Spec) -> None:
    """Serve until cancelled."""
    builder = Builder.from_spec(spec)
    tokenizer = builder.tokenizer()
    context = zmq.Context()
    to_core: Outbound[ToCore] = Outbound(context, socket_path(spec.directory, "core"))
    pool = TokenizingPool(builder.input_actor(tokenizer, await parent.facts(), to_core.send))
    inbox: Inbox[ToInput] = Inbox()
    Inbound(context, socket_path(spec.directory, "input"), ToInput, inbox.buffer.extend)
    parent.ready()
    await inbox.serve(pool.handle)


if __name__ == "__main__":
    run_child(main)

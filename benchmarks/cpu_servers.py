"""The part of `make bench-cpu` through each engine's HTTP server, with the clients of `headrace bench serve`."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
from cpu_contenders import Contender
from cpu_process import Process, free_port, wait_until

from headrace.bench.client import BenchFailed, Client, Target
from headrace.bench.serve import Load, measure


class Server(Process):
    """A contender's server."""

    def __init__(self, contender: Contender, log: Path, output_len: int) -> None:
        """Start it and wait for the first token. Raises Failed."""
        port = free_port()
        self._contender = contender
        self._output_len = output_len
        started = time.perf_counter()
        super().__init__(contender.name, [*contender.server, "--port", str(port)], contender.environment, log)
        self._url = f"http://127.0.0.1:{port}"
        try:
            with self.awake():
                wait_until(self, lambda: asyncio.run(self._makes_token()), poll_s=0.05)
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - started

    async def _makes_token(self) -> bool:
        try:
            async with Client(self._target(), time.perf_counter()) as client:
                return await client.count_prompt_tokens("Hello") > 0
        except BenchFailed:
            return False

    def _target(self) -> Target:
        return Target(
            url=self._url,
            model=self._contender.model,
            is_chat=False,
            output_len=self._output_len,
            ignore_eos=self._contender.knows_ignore_eos,
            temperature=0.0,
        )

    def load(self, num_clients: int, num_prompts: int, input_len: int, seed: int) -> dict[str, Any]:
        """Put a load on it: so many clients, each sending its next request when one ends."""
        load = Load(
            num_prompts=num_prompts,
            rate=None,
            concurrency=num_clients,
            input_len=input_len,
            prompts=None,
            seed=seed,
            goals=(),
        )
        with self.awake():
            try:
                report = asyncio.run(measure(self._target(), load, shows_progress=False))
            except BenchFailed as error:
                raise self.failed(str(error)) from None
        if report.summary.failed:
            raise self.failed(next(record.error for record in report.requests if record.error))
        summary: dict[str, Any] = msgspec.to_builtins(report.summary)
        return summary

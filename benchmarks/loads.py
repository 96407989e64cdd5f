"""What schedulers beside each other have to do, and how a step is timed. Standard library only.

Each side of the comparison runs this file with its own Python, and sees the same requests.
"""

import gc
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

STOP_ID = 2
"""Ends a request. Never generated, but looked for."""
TOKEN_IDS = range(3, 1000)
PROMPT_LENGTHS = range(32, 160)
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16
BLOCKS_PER_ROW = 64
LONG_PROMPT = 4096
"""Tokens of the prompts that are computed beside the decodes of a mixed load, a chunk a step."""
CHUNK = 256
ENDS_PER_STEP = 2.5
"""Requests that end and arrive in a step of a churning load."""
SETTLING_STEPS = 40
POOL_BLOCKS = 10_000


class Side(Protocol):
    """One engine's scheduler and block pool, without a model."""

    version: str

    def start(self, num_rows: int, num_batched_tokens: int, num_blocks: int) -> None:
        """Begin anew."""

    def add(self, prompt: list[int], max_tokens: int) -> None:
        """Submit a request."""

    def schedule(self) -> None:
        """Make a step and put it in flight. Timed."""

    def record(self) -> None:
        """Note what the step that was just made will give."""

    def compute(self, new_id: Callable[[], int]) -> None:
        """Make up what the oldest step in flight gives: a new_id() for each row that samples."""

    def update(self) -> None:
        """Take in what compute() made up. Timed."""

    def count_ended(self) -> int:
        """Count requests that ended in the last update."""

    def make_pool(self, num_blocks: int) -> Callable[[int, int], None]:
        """Make a pool; the function takes so many blocks from it and gives them back, so many times. Timed."""


class Load:
    """Requests that come as they are asked for, and their steps; two steps are in flight, as in both engines."""

    def __init__(self, side: Side, name: str, num_rows: int) -> None:
        """Submit the first requests and let them settle. name: steady, mixed or churning."""
        self._side = side
        self._name = name
        self._chance = random.Random(num_rows)
        self._ids = itertools.cycle(self._chance.choices(TOKEN_IDS, k=10_007))
        self._lifetime = num_rows / ENDS_PER_STEP
        num_long = max(1, num_rows // 16) if name == "mixed" else 0
        num_decoding = num_rows - num_long
        budget = num_decoding + CHUNK if name == "mixed" else MAX_MODEL_LEN
        side.start(num_rows, budget, num_rows * BLOCKS_PER_ROW)
        for i in range(num_decoding):
            age = i / num_decoding if name == "churning" else 0.0
            side.add(self._prompt(), max(2, round(self._num_tokens() * (1 - age))))
        side.schedule()
        side.record()
        for _ in range(SETTLING_STEPS + (round(self._lifetime) if name == "churning" else 0)):
            self.step()
        for _ in range(num_long):
            self._arrive()
        self.step()
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def step(self) -> float:
        """Make a step and take one in; returns the seconds that scheduling took, both ways.

        Of this thread, so that a busy machine changes little.
        """
        side = self._side
        started = time.thread_time()
        side.schedule()
        scheduled = time.thread_time()
        side.record()
        side.compute(self._ids.__next__)
        computed = time.thread_time()
        side.update()
        updated = time.thread_time()
        for _ in range(side.count_ended()):
            self._arrive()
        return updated - computed + scheduled - started

    def _arrive(self) -> None:
        if self._name == "mixed":
            self._side.add(self._chance.choices(TOKEN_IDS, k=LONG_PROMPT), 1)
        else:
            self._side.add(self._prompt(), self._num_tokens())

    def _prompt(self) -> list[int]:
        return self._chance.choices(TOKEN_IDS, k=self._chance.choice(PROMPT_LENGTHS))

    def _num_tokens(self) -> int:
        if self._name != "churning":
            return 2000
        return max(2, int(self._lifetime + self._chance.random()))


def time_pool(turn: Callable[[int, int], None], num_blocks: int, num_turns: int) -> float:
    """Return the seconds that it takes to take a block and give it back, `num_blocks` at a time."""
    started = time.thread_time()
    turn(num_blocks, num_turns)
    return (time.thread_time() - started) / num_turns / num_blocks


def serve(side: Side) -> None:
    """Do what each line of standard input asks for, and answer with a line of JSON on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes elsewhere
    load: Load | None = None
    turn = side.make_pool(POOL_BLOCKS)
    for line in sys.stdin:
        question: dict[str, Any] = json.loads(line)
        answer: Any = None
        match question:
            case {"load": name, "rows": num_rows}:
                load = None  # frees the last one's pool
                load = Load(side, name, num_rows)
            case {"steps": count} if load:
                answer = [load.step() for _ in range(count)]
            case {"pool": num_blocks, "turns": num_turns}:
                answer = time_pool(turn, num_blocks, num_turns)
            case {"version": True}:
                answer = side.version
        print(json.dumps(answer), file=answers, flush=True)

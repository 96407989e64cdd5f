"""Servers that the tests of a file share; each test leaves them idle."""

from collections.abc import Iterator

import pytest
from engines import kvhash, script
from servers import Server, serving


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared: Server) -> Iterator[Server]:
    """A server whose tokens are exact: kvhash behind a tokenizer of one character per token."""
    yield shared
    shared.check_idle()


@pytest.fixture(scope="module")
def shared_endless() -> Iterator[Server]:
    with serving(kvhash(max_model_len=120_000, num_kv_blocks=8192)) as server:
        yield server


@pytest.fixture
def endless(shared_endless: Server) -> Iterator[Server]:
    """A server whose requests of 100,000 tokens don't end while a test runs."""
    yield shared_endless
    shared_endless.check_idle()


@pytest.fixture
def scripted(smollm2):
    """Serve an engine that emits given tokens through the real tokenizer."""

    def make(tokens, faults=(), **options):
        return serving(script(tokens, list(faults), model=smollm2), **options)

    return make

"""Fixtures that tests of all folders share."""

import os
from pathlib import Path

import pytest

from headrace.core.errors import ModelNotFound
from headrace.core.model_files.resolve import resolve_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model's file. Without it tests are skipped, except in CI, where `make test` has pulled it."""
    try:
        return resolve_model("smollm2-135m-instruct")
    except ModelNotFound as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """The catalogue's other real model. Tests that need it are skipped unless it was pulled, as `make verify` does."""
    try:
        return resolve_model("gemma3-270m")
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture
def script():
    """Build a script runner for a Harness: script(tokens=[...], faults=[...])."""
    import msgspec

    from headrace.core.config import EngineConfig
    from headrace.core.providers import RunnerContext
    from headrace.runners.script import ScriptOptions, build

    def make(**options):
        config = EngineConfig(max_model_len=1024)
        context = RunnerContext(config, None, max_rows=2 * config.max_num_seqs, clock=lambda: 0.0)
        return build(context, msgspec.convert({"vocab_size": 2048, **options}, ScriptOptions))

    return make

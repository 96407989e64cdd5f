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

import inspect
import re

import msgspec

from headrace.core.config import Use
from headrace.plugins import hookspecs


def hooks() -> dict[str, str]:
    return {
        name: inspect.getdoc(function) or ""
        for specification in hookspecs.SPECIFICATIONS
        for name, function in inspect.getmembers(specification, inspect.isfunction)
    }


def test_every_hook_provides_a_role_and_every_role_has_a_hook() -> None:
    assert sorted(hooks()) == sorted(hookspecs.PROVIDES.values())


NOT_CHOSEN = {"prompt_hasher", "model_family", "logits_processor"}


def test_every_role_that_has_one_provider_at_a_time_is_chosen_in_use() -> None:
    assert {field.name for field in msgspec.structs.fields(Use)} == hookspecs.PROVIDES.keys() - NOT_CHOSEN


def test_every_hook_tells_process_version_and_how_its_providers_are_built() -> None:
    for name, text in hooks().items():
        assert re.search(r"^build\(context: \w+, options\) -> \w+", text, re.MULTILINE), name
        assert re.search(r"^Process: .*Since: \d+\.\d+\.$", text, re.MULTILINE), name

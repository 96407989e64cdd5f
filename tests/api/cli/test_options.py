import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli.options import field_docs, takes_options
from headrace.core.config import EngineConfig, Use
from headrace.core.errors import ConfigError, InvalidParameter
from headrace.core.params import SamplingParams

Given = dict[str, Any]


def given(**typed: Any) -> tuple[Given, Given]:
    """Call a command with these options typed and all others not; return its engine and sampling arguments."""
    got: list[Given] = []

    @takes_options
    def command(*, engine: Given, sampling: Given) -> None:
        got.extend((engine, sampling))

    names = inspect.signature(command).parameters
    assert typed.keys() <= names.keys()
    command(**dict.fromkeys(names) | typed)
    return got[0], got[1]


def test_every_field_of_config_and_sampling_is_an_option() -> None:
    @takes_options
    def command(*, engine: Given, sampling: Given) -> None: ...

    names = {field.name for struct in (Use, EngineConfig, SamplingParams) for field in msgspec.structs.fields(struct)}
    assert inspect.signature(command).parameters.keys() == names | {"engine_seed", "config", "option"}


def test_only_what_was_typed_arrives() -> None:
    assert given(policy="fcfs", max_num_seqs=3, temperature=0.0) == (
        {"policy": "fcfs", "max_num_seqs": 3},
        {"temperature": 0.0},
    )


def test_false_and_zero_count_as_typed() -> None:
    assert given(async_scheduling=False, top_k=0) == ({"async_scheduling": False}, {"top_k": 0})


def test_the_seeds_of_request_and_engine_are_two_options() -> None:
    assert given(seed=1, engine_seed=2) == ({"seed": 2}, {"seed": 1})


def test_a_command_without_sampling_keeps_the_engines_names() -> None:
    @takes_options
    def command(*, engine: Given) -> None: ...

    assert "seed" in inspect.signature(command).parameters


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), ("2.5", 2.5), ("true", True), ("[1, [2, 3]]", [1, [2, 3]]), ('"a"', "a"), ("plain text", "plain text")],
)
def test_an_option_of_a_provider_is_read_as_toml_or_as_text(text: str, value: object) -> None:
    engine, _ = given(option=[f"policy.slack={text}", "kv.a=1"], config=Path("x"))
    assert engine == {"config": Path("x"), "options": {"policy": {"slack": value}, "kv": {"a": 1}}}


@pytest.mark.parametrize("text", ["policy=1", "policy.slack", ""])
def test_an_option_of_no_provider_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be ROLE\.NAME=VALUE"):
        given(option=[text])


def test_logit_bias_is_read_as_pairs() -> None:
    assert given(logit_bias=["5=-1.5", "7=2"])[1] == {"logit_bias": {5: -1.5, 7: 2.0}}
    with pytest.raises(InvalidParameter, match="must be ID=BIAS"):
        given(logit_bias=["5"])


def test_logits_processors_are_read_as_names_and_arguments() -> None:
    typed = ["no-repeat.size=3", "mine.v1.5.words=['a']", "no-repeat.counts_prompt=false", "plain"]
    assert given(logits_processors=typed)[1]["logits_processors"] == {
        "no-repeat": {"size": 3, "counts_prompt": False},
        "mine.v1.5": {"words": ["a"]},
        "plain": {},
    }


@pytest.mark.parametrize("text", ["", "=3", "size=3", "a.=3"])
def test_a_logits_processor_that_reads_as_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="must be NAME or NAME.ARGUMENT=VALUE"):
        given(logits_processors=[text])


def test_the_help_of_an_option_is_the_text_under_its_field() -> None:
    assert field_docs(EngineConfig)["block_size"] == "Tokens of one KV block."
    documented = field_docs(EngineConfig) | field_docs(SamplingParams)
    for struct in (EngineConfig, SamplingParams):
        assert {field.name for field in msgspec.structs.fields(struct)} <= documented.keys()

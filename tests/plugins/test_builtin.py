import subprocess
import sys

import pytest

from headrace.core.config import ROLES, Config, EngineConfig
from headrace.core.messages import KVGroup, RunnerReady
from headrace.core.providers import CoreContext, SchedulerContext
from headrace.plugins.manager import load_plugins

FACTS = RunnerReady(vocab_size=100, max_model_len=64, groups=(KVGroup(1, 8),), bytes_per_block=1)
CORE = CoreContext(EngineConfig(), FACTS, max_rows=128, clock=float)


def test_every_role_has_the_built_in_choices() -> None:
    providers = load_plugins(Config()).providers
    assert {role: list(providers[role]) for role in ROLES} == {
        "scheduler": ["plain", "table"],
        "policy": ["fcfs", "priority"],
        "kv": ["paged", "simple"],
        "runner": ["auto", "kvhash", "native", "script", "sim", "torch"],
        "proposer": ["draft", "ngram"],
        "tokenizer": ["huggingface", "symbols"],
    }


def test_every_provider_says_in_a_line_what_it_is() -> None:
    for of_role in load_plugins(Config()).providers.values():
        for registered in of_role.values():
            assert 10 < len(registered.provider.summary) < 80


def test_every_prompt_hasher_belongs_to_a_kv_manager() -> None:
    providers = load_plugins(Config()).providers
    assert providers["prompt_hasher"].keys() <= providers["kv"].keys()


@pytest.mark.parametrize("name", ["plain", "table"])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kv", ["paged", "simple"])
def test_the_core_parts_are_built_from_their_contexts(name: str, policy: str, kv: str) -> None:
    registry = load_plugins(Config())
    built_kv = registry.provider("kv", kv).build(CORE, None)
    built_policy = registry.provider("policy", policy).build(CORE, None)
    scheduler = registry.provider("scheduler", name).build(SchedulerContext(CORE, built_kv, built_policy), None)
    assert scheduler.schedule() is None


def test_loading_the_plugins_loads_no_heavy_library() -> None:
    code = (
        "from headrace.core.config import Config; from headrace.plugins.manager import load_plugins;"
        "load_plugins(Config()); import sys; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = {module.split(".")[0] for module in done.stdout.split()}
    assert loaded & {"torch", "transformers", "tokenizers", "gguf", "jinja2"} == set()

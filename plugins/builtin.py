"""The built-in providers, registered through the same hooks as everyone else's; each imports its part when built."""

from functools import partial
from importlib import import_module
from typing import Any

from headrace.core.columns import Ints
from headrace.core.interfaces import BlockKeys, KVManager, Policy, PromptHasher, Scheduler, Tokenizer
from headrace.core.providers import CoreContext, Provider, SchedulerContext, TextContext
from headrace.core.text.symbols import SymbolsOptions, SymbolsTokenizer


def headrace_schedulers() -> list[Provider]:
    """Provide `plain` and `table`, which make the same schedules."""
    return [
        Provider("plain", _plain, summary="readable, the reference for every other scheduler"),
        Provider("table", _table, summary="columns of numbers: the fast one"),
    ]


def headrace_policies() -> list[Provider]:
    """Provide `fcfs` and `priority`."""
    return [
        Provider("fcfs", _fcfs, summary="first come, first served"),
        Provider("priority", _priority, summary="lowest priority value first, ties by arrival"),
    ]


def headrace_kv_managers() -> list[Provider]:
    """Provide `paged` and `simple`."""
    return [
        Provider("paged", _paged, summary="block pool with a prefix cache"),
        Provider("simple", _simple, summary="the same blocks for each row, no prefix cache"),
    ]


def headrace_runners() -> list[Provider]:
    """Provide `auto`, `torch` and `native`, and three that need no model: `script`, `kvhash` and `sim`."""
    from headrace.runners import auto, kvhash, script, sim
    from headrace.runners.native import options as native

    return [
        Provider("auto", auto.build, summary="native where it can run the model, else torch"),
        Provider("torch", auto.build_torch, summary="any supported model on the CPU, exact in float32"),
        Provider(
            "native", native.build, native.NativeOptions, "C++ kernels on the file's own numbers", runs_in_core=True
        ),
        Provider("script", script.build, script.ScriptOptions, "emits given tokens, for tests"),
        Provider(
            "kvhash", kvhash.build, kvhash.KVHashOptions, "emits hashes of what the block tables lead to, for tests"
        ),
        Provider("sim", sim.build, sim.SimOptions, "a cost model and a clock instead of a model", runs_in_core=True),
    ]


def headrace_proposers() -> list[Provider]:
    """Provide `ngram` and `draft`."""
    from headrace.runners.proposers import draft, ngram

    return [
        Provider("ngram", ngram.build, ngram.NgramOptions, "what followed the same tokens earlier in the sequence"),
        Provider("draft", draft.build, draft.DraftOptions, "a second, smaller model"),
    ]


def headrace_model_families() -> list[Provider]:
    """Provide every architecture in runners/models."""
    return [Provider(name, partial(_family, module), summary=summary) for name, (module, summary) in _FAMILIES.items()]


def headrace_prompt_hashers() -> list[Provider]:
    """Provide the hasher of `paged`; `simple` has none."""
    return [Provider("paged", _paged_hasher, summary="sha256 chain over full blocks")]


def headrace_tokenizers() -> list[Provider]:
    """Provide `huggingface` and `symbols`."""
    return [
        Provider("huggingface", _huggingface, summary="the model's own"),
        Provider("symbols", _symbols, SymbolsOptions, summary="one character per token, for runners without a model"),
    ]


_FAMILIES = {
    "llama": ("llama", "Llama, SmolLM and alike"),
    "mistral": ("mistral", "Mistral: Llama with a sliding window"),
    "qwen2": ("qwen2", "Qwen2 and Qwen2.5: biases"),
    "qwen3": ("qwen3", "Qwen3: norms of queries and keys"),
    "gemma3": ("gemma3", "Gemma 3, its text models, in GGUF files"),
    "gemma3_text": ("gemma3", "Gemma 3, its text models, in folders"),
    "gpt2": ("gpt2", "GPT-2: learned positions"),
}
"""Module of runners/models and summary by architecture."""


def _family(module: str, context: TextContext, options: None) -> Any:
    return import_module(f"headrace.runners.models.{module}").FAMILY


def _plain(context: SchedulerContext, options: None) -> Scheduler:
    from headrace.schedulers.plain import PlainScheduler

    return PlainScheduler(context)


def _table(context: SchedulerContext, options: None) -> Scheduler:
    from headrace.schedulers.table import TableScheduler

    return TableScheduler(context)


def _fcfs(context: CoreContext, options: None) -> Policy:
    from headrace.schedulers.policies.fcfs import FCFS

    return FCFS()


def _priority(context: CoreContext, options: None) -> Policy:
    from headrace.schedulers.policies.priority import Priority

    return Priority()


def _paged(context: CoreContext, options: None) -> KVManager:
    from headrace.kv.paged import PagedKV

    return PagedKV.from_context(context)


def _simple(context: CoreContext, options: None) -> KVManager:
    from headrace.kv.simple import SimpleKV

    return SimpleKV.from_context(context)


def _huggingface(context: TextContext, options: None) -> Tokenizer:
    from headrace.core.text.tokenizer import load_tokenizer

    return load_tokenizer(context.need_model(), context.config.chat_template)


def _symbols(context: TextContext, options: SymbolsOptions) -> Tokenizer:
    return SymbolsTokenizer(options)


def _paged_hasher(context: TextContext, options: None) -> PromptHasher:
    from headrace.kv.prefix import block_hasher, root_digest

    hasher = block_hasher(context.config.block_size)

    def hash_prompt(salt: str | None, token_ids: Ints) -> BlockKeys:
        root = root_digest(salt)
        return BlockKeys(root, hasher(root, (), token_ids))

    return hash_prompt

"""The whole contract between Headrace and its plugins: one class of hooks per process.

A plugin is a module (or object) named by an entry point of the group `headrace`; its functions with these names are its
hooks. The prefix `headrace_` is reserved for them: any other function that starts with it is taken for a misspelt hook
and stops the start. Hooks run while the engine is built, never per token or step: there the objects that they provided
are called directly. Arguments may be added to a hook, never renamed or removed.

Each hook here returns providers: named choices for one role, of which plugins.toml picks one. All of them follow one
rule. Called: once per start, before a model is loaded, in each process that needs the role. May block: briefly; no
files, no network, no heavy imports, which belong into Provider.build. An error: stops the start with a PluginError that
names plugin, package and reason; `[plugins] disable` leaves the plugin out. Wrappers: refused, nothing is left to wrap.
"""

import pluggy

from headrace.core.providers import Provider

PROJECT = "headrace"
ENTRY_POINTS = "headrace"
"""Group of entry points that third parties register in."""

hookspec = pluggy.HookspecMarker(PROJECT)


class InputHooks:
    """Input process: prompts become token ids, and block hashes where the KV manager wants them."""

    @hookspec
    def headrace_prompt_hashers(self) -> list[Provider]:
        """Return prompt hashers, each under the name of the KV provider that it belongs to.

        build(context: TextContext, options) -> PromptHasher; `options` are those of the KV provider. A KV provider
        without a prefix cache has no hasher.

        Process: input. Since: 0.1.
        """
        raise AssertionError("a specification is never called")


class TextHooks:
    """Input and output processes: what both need to translate between text and token ids."""

    @hookspec
    def headrace_tokenizers(self) -> list[Provider]:
        """Return tokenizers, for `[use] tokenizer`.

        build(context: TextContext, options) -> Tokenizer

        Process: input and output, where each builds its own. Since: 0.1.
        """
        raise AssertionError("a specification is never called")


class CoreHooks:
    """Core process: which request runs when, and where its keys and values lie."""

    @hookspec
    def headrace_schedulers(self) -> list[Provider]:
        """Return schedulers, for `[use] scheduler`.

        build(context: SchedulerContext, options) -> Scheduler

        Process: core. Since: 0.1.
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def headrace_policies(self) -> list[Provider]:
        """Return scheduling policies, for `[use] policy`.

        build(context: CoreContext, options) -> Policy

        Process: core. Since: 0.1.
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def headrace_kv_managers(self) -> list[Provider]:
        """Return KV managers, for `[use] kv`.

        build(context: CoreContext, options) -> KVManager

        Process: core. Since: 0.1.
        """
        raise AssertionError("a specification is never called")


class RunnerHooks:
    """Runner process: what computes the steps."""

    @hookspec
    def headrace_runners(self) -> list[Provider]:
        """Return runners, for `[use] runner`.

        build(context: RunnerContext, options) -> Runner; its load() is called later, off the event loop.

        Process: runner. Since: 0.1.
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def headrace_proposers(self) -> list[Provider]:
        """Return proposers of draft tokens, for `[use] proposer`.

        build(context: RunnerContext, options) -> Proposer; its load() comes after that of the runner's model. Built
        only if engine.num_speculative_tokens is above 0.

        Process: runner. Since: 0.1.
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def headrace_model_families(self) -> list[Provider]:
        """Return model families, each under the name of its architecture: `general.architecture` of GGUF files,
        `model_type` of folders; one that has several names is provided under each.

        build(context: TextContext, options) -> Family of runners/models/contract.py; there are no options. Called when
        a model of this architecture is loaded. May block: imports of what reads configs; torch is for Family.build.

        Process: runner. Since: 0.1.
        """
        raise AssertionError("a specification is never called")

    @hookspec
    def headrace_logits_processors(self) -> list[Provider]:
        """Return logits processors, which requests name in their `logits_processors`; one may name several.

        build(context: ProcessorContext, options) -> LogitsProcessor; `options` come from the request's arguments.
        Called for each request when it gets its row, on the compute thread: it and what it builds hold up all rows.

        Process: runner; input decodes arguments, so that wrong ones are refused at once. Since: 0.1.
        """
        raise AssertionError("a specification is never called")


SPECIFICATIONS = (InputHooks, TextHooks, CoreHooks, RunnerHooks)

PROVIDES = {
    "scheduler": "headrace_schedulers",
    "policy": "headrace_policies",
    "kv": "headrace_kv_managers",
    "runner": "headrace_runners",
    "proposer": "headrace_proposers",
    "tokenizer": "headrace_tokenizers",
    "prompt_hasher": "headrace_prompt_hashers",
    "model_family": "headrace_model_families",
    "logits_processor": "headrace_logits_processors",
}
"""The hook that provides each role. [use] chooses one provider of each, but for prompt_hasher, which follows kv,
model_family, which follows the model's files, and logits_processor, which requests choose."""

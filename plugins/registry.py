"""What plugins provide, what the config chose of it, and how that is built."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from headrace.core.config import ROLES, Config
from headrace.core.decode import decode, suggest
from headrace.core.errors import ConfigError, HeadraceError, InvalidParameter, PluginError
from headrace.core.extensions import LogitsProcessor, Proposer
from headrace.core.interfaces import KVManager, Policy, PromptHasher, Runner, Scheduler, Tokenizer
from headrace.core.providers import (
    CoreContext,
    ProcessorContext,
    Provider,
    RunnerContext,
    SchedulerContext,
    TextContext,
)
from headrace.plugins.processors import GuardedProcessor

PROTOCOLS: dict[str, type] = {
    "scheduler": Scheduler,
    "policy": Policy,
    "kv": KVManager,
    "runner": Runner,
    "proposer": Proposer,
    "tokenizer": Tokenizer,
    "prompt_hasher": object,
    "model_family": object,
    "logits_processor": object,
}
"""What is built for each role; prompt hashers and logits processors are any callables."""


class Origin(Struct, frozen=True):
    """Where a plugin comes from."""

    plugin: str
    """Name of its entry point."""
    package: str
    version: str

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} (package {self.package} {self.version})"


class Registered(Struct, frozen=True):
    """One provider and where it comes from."""

    role: str
    provider: Provider
    origin: Origin

    def __str__(self) -> str:
        return f"{self.origin}, {self.role} {self.provider.name!r}"

    def build(self, context: object, options: Struct | None) -> Any:
        """Build the object, and check that it has all that its role's protocol names.

        Raises HeadraceError; whatever else the plugin raises becomes a PluginError naming it.
        """
        try:
            built = self.provider.build(context, options)
        except HeadraceError:
            raise
        except Exception as error:
            raise self._broken(f"building it raised {type(error).__name__}: {error}") from error
        missing = [name for name in _members(PROTOCOLS[self.role]) if not hasattr(built, name)]
        if missing:
            raise self._broken(f"what it built, a {type(built).__name__}, lacks {', '.join(missing)}")
        return built

    def _broken(self, reason: str) -> PluginError:
        return PluginError(f"{self}: {reason}")


def _members(protocol: type) -> list[str]:
    names = [*vars(protocol).get("__annotations__", {}), *vars(protocol)]
    return [name for name in names if not name.startswith("_")]


class Registry:
    """Every provider of every role, and the chosen ones with their decoded options. Never changes."""

    def __init__(self, config: Config, providers: dict[str, dict[str, Registered]], plugins: list[Origin]) -> None:
        """Resolve each choice of [use] and decode its [options]. Raises PluginError, ConfigError."""
        for role in config.options:
            if role not in ROLES:
                raise ConfigError(f"options.{role} is unknown; {suggest(role, ROLES)}")
        self.providers = providers
        self.plugins = plugins
        self.chosen = {role: self.provider(role, getattr(config.use, role)) for role in ROLES}
        self.options = {
            role: _decode_options(self.chosen[role], config.options.get(role) or {}, f"options.{role}")
            for role in ROLES
        }

    def provider(self, role: str, name: str) -> Registered:
        """Find a provider by name. Raises PluginError listing the choices."""
        if name not in self.providers[role]:
            raise PluginError(
                f"use.{role} is {name!r}, which no plugin provides; {suggest(name, self.providers[role])}"
            )
        return self.providers[role][name]

    def chosen_name(self, role: str) -> str | None:
        """Return which provider of a role is in use; None where requests or models choose."""
        role = "kv" if role == "prompt_hasher" else role
        return self.chosen[role].provider.name if role in self.chosen else None

    def build_runner(self, context: RunnerContext) -> Runner:
        """Build the chosen runner; it isn't loaded yet."""
        runner: Runner = self._build("runner", context)
        return runner

    def build_proposer(self, context: RunnerContext) -> Proposer | None:
        """Build the chosen proposer; it isn't loaded yet. None: there are no drafts."""
        if not context.config.num_speculative_tokens:
            return None
        proposer: Proposer = self._build("proposer", context)
        return proposer

    def build_kv(self, context: CoreContext) -> KVManager:
        """Build the chosen KV manager."""
        kv: KVManager = self._build("kv", context)
        return kv

    def build_policy(self, context: CoreContext) -> Policy:
        """Build the chosen policy."""
        policy: Policy = self._build("policy", context)
        return policy

    def build_scheduler(self, context: SchedulerContext) -> Scheduler:
        """Build the chosen scheduler."""
        scheduler: Scheduler = self._build("scheduler", context)
        return scheduler

    def build_tokenizer(self, context: TextContext) -> Tokenizer:
        """Build the chosen tokenizer."""
        tokenizer: Tokenizer = self._build("tokenizer", context)
        return tokenizer

    def build_prompt_hasher(self, context: TextContext) -> PromptHasher | None:
        """Build the prompt hasher of the chosen KV manager; None if it has none, or if prefix caching is off."""
        hasher = self.providers["prompt_hasher"].get(self.chosen["kv"].provider.name)
        if hasher is None or not context.config.enable_prefix_caching:
            return None
        hash_prompt: PromptHasher = hasher.build(context, self.options["kv"])
        return hash_prompt

    def families(self, text: TextContext) -> dict[str, Callable[[], Any]]:
        """Return what builds each model family, by architecture."""
        return {name: partial(family.build, text, None) for name, family in self.providers["model_family"].items()}

    def check_processor(self, name: str, arguments: dict[str, Any]) -> None:
        """Check what a request says of a logits processor. Raises InvalidParameter listing the choices."""
        self._decode_processor(name, arguments)

    def build_processor(self, text: TextContext, name: str, arguments: dict[str, Any], size: int) -> LogitsProcessor:
        """Build a request's logits processor for a vocabulary of this size. Raises InvalidParameter, PluginError."""
        found, options = self._decode_processor(name, arguments)
        return GuardedProcessor(str(found), found.build(ProcessorContext(text.config, text.model, size), options))

    def _decode_processor(self, name: str, arguments: dict[str, Any]) -> tuple[Registered, Struct | None]:
        found = self.providers["logits_processor"].get(name)
        if found is None:
            choices = suggest(name, self.providers["logits_processor"])
            raise InvalidParameter(
                f"logits_processors names {name!r}, which no plugin provides; {choices}", "logits_processors"
            )
        try:
            return found, _decode_options(found, arguments, f"logits_processors.{name}")
        except ConfigError as error:
            raise InvalidParameter(str(error), "logits_processors") from None

    def _build(self, role: str, context: object) -> Any:
        return self.chosen[role].build(context, self.options[role])


def _decode_options(chosen: Registered, options: dict[str, Any], where: str) -> Struct | None:
    if chosen.provider.options is not None:
        return decode(options, chosen.provider.options, where)
    if options:
        raise ConfigError(f"{where}: {chosen.role} {chosen.provider.name!r} takes no options, got {', '.join(options)}")
    return None

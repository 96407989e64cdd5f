"""Find plugins, check all that they say, and build what the config chose. Nothing here loads a model.

Everything wrong is a PluginError or ConfigError that names plugin, package and reason: an import that fails, a misspelt
hook, a doubled name, an unknown choice, a wrong option.
"""

import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

import pluggy
from msgspec import Struct

from headrace.core.config import Config
from headrace.core.decode import suggest
from headrace.core.errors import PluginError
from headrace.core.providers import Provider
from headrace.plugins import builtin, hookspecs
from headrace.plugins.registry import Origin, Registered, Registry

__all__ = ["PluginManager", "Registry", "load_plugins"]


def load_plugins(config: Config) -> Registry:
    """Load the built-ins and every installed plugin that isn't disabled, and resolve what `config` chooses.

    Raises PluginError, or ConfigError for a wrong option. Imports no model code.
    """
    plugins = PluginManager()
    plugins.add(builtin, Origin("headrace", "headrace", version("headrace")))
    for entry in _enabled(entry_points(group=hookspecs.ENTRY_POINTS), config.plugins.disable):
        plugins.add_entry_point(entry)
    providers = {role: plugins.providers(role) for role in hookspecs.PROVIDES}
    return Registry(config, providers, list(plugins.origins.values()))


def _enabled(installed: Iterable[EntryPoint], disabled: tuple[str, ...]) -> list[EntryPoint]:
    names = {entry.name for entry in installed}
    for name in disabled:
        if name not in names:
            raise PluginError(f"plugins.disable names {name!r}, which is not installed; {suggest(name, names)}")
    return [entry for entry in installed if entry.name not in disabled]


class PluginManager(pluggy.PluginManager):
    """pluggy's manager with our contract; hooks are found by their names, no marker is needed."""

    def __init__(self) -> None:
        super().__init__(hookspecs.PROJECT)
        for specification in hookspecs.SPECIFICATIONS:
            self.add_hookspecs(specification)
        self.origins: dict[str, Origin] = {}

    def add_entry_point(self, entry: EntryPoint) -> None:
        """Import an installed plugin and add it."""
        origin = Origin(entry.name, entry.dist.name if entry.dist else "?", entry.dist.version if entry.dist else "?")
        try:
            plugin = entry.load()
        except Exception as error:
            raise _broken(origin, f"importing {entry.value} raised {type(error).__name__}: {error}") from error
        self.add(plugin, origin)

    def add(self, plugin: object, origin: Origin) -> None:
        """Register a plugin's hooks, all or none. Raises PluginError."""
        if known := self.origins.get(origin.plugin):
            raise _broken(origin, f"{known} has the same name")
        if same := self.get_name(plugin):
            raise _broken(origin, f"{self.origins[same]} is the same object")
        self._check_names(plugin, origin)
        try:
            self.register(plugin, origin.plugin)
        except (pluggy.PluginValidationError, ValueError) as error:
            if self.has_plugin(origin.plugin):
                self.unregister(name=origin.plugin)
            raise _broken(origin, str(error)) from error
        self.origins[origin.plugin] = origin

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Take every function whose name starts with the project's prefix for a hook."""
        if not _is_hook(plugin, name):
            return None
        return super().parse_hookimpl_opts(plugin, name) or pluggy.HookimplOpts(
            wrapper=False, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False, specname=None
        )

    def providers(self, role: str) -> dict[str, Registered]:
        """Ask every plugin for its providers of a role. Raises PluginError."""
        hook = hookspecs.PROVIDES[role]
        found: dict[str, Registered] = {}
        for implementation in getattr(self.hook, hook).get_hookimpls():
            origin = self.origins[implementation.plugin_name]
            if implementation.wrapper or implementation.hookwrapper:
                raise _broken(origin, f"{hook}() is a wrapper; hooks that return providers can't be wrapped")
            for provider in _call(hook, implementation.function, origin):
                registered = Registered(role, provider, origin)
                if known := found.get(provider.name):
                    raise _broken(origin, f"it provides {role} {provider.name!r}, and so does {known.origin}")
                found[provider.name] = registered
        return dict(sorted(found.items()))

    def _check_names(self, plugin: object, origin: Origin) -> None:
        hooks = hookspecs.PROVIDES.values()
        for name in dir(plugin):
            if _is_hook(plugin, name) and name not in hooks:
                raise _broken(origin, f"{name}() is no hook; {suggest(name, hooks)}")


def _is_hook(plugin: object, name: str) -> bool:
    return name.startswith(f"{hookspecs.PROJECT}_") and _is_function(getattr(plugin, name))


def _is_function(value: object) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)


def _call(hook: str, function: Any, origin: Origin) -> list[Provider]:
    try:
        providers = function()
    except Exception as error:
        raise _broken(origin, f"{hook}() raised {type(error).__name__}: {error}") from error
    if not isinstance(providers, list) or not all(isinstance(provider, Provider) for provider in providers):
        raise _broken(origin, f"{hook}() returned {providers!r}, must be a list of Provider")
    for provider in providers:
        if not isinstance(provider.name, str) or not callable(provider.build):
            raise _broken(origin, f"{hook}(): {provider!r} needs a name and a function to build with")
        _check_options(hook, provider.options, origin)
    return providers


def _check_options(hook: str, options: Any, origin: Origin) -> None:
    if options is None:
        return
    if not isinstance(options, type) or not issubclass(options, Struct):
        raise _broken(origin, f"{hook}(): options are {options!r}, must be a msgspec.Struct class")
    if not options.__struct_config__.forbid_unknown_fields:
        raise _broken(
            origin, f"{hook}(): {options.__name__} needs forbid_unknown_fields=True to refuse misspelt options"
        )


def _broken(origin: Origin, reason: str) -> PluginError:
    return PluginError(f"{origin}: {reason}; to start without it: [plugins] disable = [{origin.plugin!r}]")

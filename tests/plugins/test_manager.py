import sys
from collections.abc import Callable
from pathlib import Path

import pluggy
import pytest

from headrace.core.config import Config, Plugins, Use
from headrace.core.errors import ConfigError, PluginError
from headrace.plugins.manager import PluginManager, load_plugins
from headrace.plugins.registry import Origin

Install = Callable[..., None]

GOOD = """
from headrace.core.providers import Provider

def headrace_policies():
    return [Provider("{name}", lambda context, options: "built {name}")]
"""
ORIGIN = Origin("mine", "headrace-mine", "1.0")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with one entry point where Python finds installed ones."""

    def install(plugin: str, source: str, package: str | None = None) -> None:
        package = package or f"headrace-{plugin}"
        module = package.replace("-", "_")
        folder = tmp_path / package
        metadata = folder / f"{module}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[headrace]\n{plugin} = {module}\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def failure(config: Config | None = None) -> str:
    with pytest.raises(PluginError) as caught:
        load_plugins(config or Config())
    return str(caught.value)


def disabled(*names: str) -> Config:
    return Config(plugins=Plugins(disable=names))


def test_an_installed_plugin_is_used_by_name(install: Install) -> None:
    install("fair", GOOD.format(name="fair"))
    registry = load_plugins(Config(use=Use(policy="fair")))
    assert registry.chosen["policy"].origin == Origin("fair", "headrace-fair", "1.0")
    assert registry.chosen["policy"].provider.build(None, None) == "built fair"


def test_the_built_ins_come_through_the_same_door() -> None:
    registry = load_plugins(Config())
    assert {chosen.origin.plugin for chosen in registry.chosen.values()} == {"headrace"}


def test_F15_a_broken_entry_point_stops_the_start_naming_package_and_reason(install: Install) -> None:
    install("broken", "import a_module_that_is_missing")
    message = failure()
    assert "plugin 'broken' (package headrace-broken 1.0)" in message
    assert "ModuleNotFoundError: No module named 'a_module_that_is_missing'" in message


def test_F15_disabling_is_the_way_out_of_a_broken_entry_point(install: Install) -> None:
    install("broken", "1 / 0")
    assert "[plugins] disable = ['broken']" in failure()
    assert "broken" not in [plugin.plugin for plugin in load_plugins(disabled("broken")).plugins]


def test_F15_a_provider_of_a_taken_name_stops_the_start_naming_both_packages(install: Install) -> None:
    install("one", GOOD.format(name="fair"))
    install("two", GOOD.format(name="fair"))
    message = failure()
    assert "policy 'fair'" in message
    assert "headrace-one 1.0" in message
    assert "headrace-two 1.0" in message
    assert "fair" in load_plugins(disabled("two")).providers["policy"]


def test_F15_a_provider_that_takes_a_built_in_name_stops_the_start(install: Install) -> None:
    install("mine", GOOD.format(name="fcfs"))
    assert "package headrace-mine 1.0): it provides policy 'fcfs', and so does plugin 'headrace'" in failure()


def test_F15_two_plugins_of_one_name_stop_the_start_naming_both_packages(install: Install) -> None:
    install("fair", GOOD.format(name="a"), package="pack-a")
    install("fair", GOOD.format(name="b"), package="pack-b")
    message = failure()
    assert "pack-a 1.0" in message
    assert "pack-b 1.0" in message


def test_F15_a_plugin_with_one_good_and_one_bad_hook_leaves_no_trace() -> None:
    class Half:
        def headrace_policies(self) -> list[object]:
            return []

        def headrace_runners(self, extra: int) -> list[object]:
            return []

    manager = PluginManager()
    with pytest.raises(PluginError, match=r"plugin 'mine' \(package headrace-mine 1.0\)"):
        manager.add(Half(), ORIGIN)
    assert manager.get_plugins() == set()
    assert manager.origins == {}
    assert manager.providers("policy") == {}


def test_F15_one_module_under_two_names_stops_the_start() -> None:
    class Plugin:
        pass

    manager, plugin = PluginManager(), Plugin()
    manager.add(plugin, ORIGIN)
    with pytest.raises(PluginError, match=r"plugin 'mine' \(package headrace-mine 1.0\) is the same object"):
        manager.add(plugin, Origin("other", "headrace-other", "2.0"))


@pytest.mark.parametrize("name", ["headrace_polices", "headrace_step"])
def test_F15_a_misspelt_hook_stops_the_start_with_the_names_there_are(install: Install, name: str) -> None:
    install("typo", f"def {name}(): return []")
    message = failure()
    assert f"plugin 'typo' (package headrace-typo 1.0): {name}() is no hook" in message
    assert "headrace_policies" in message


def test_the_nearest_hook_is_suggested(install: Install) -> None:
    install("typo", "def headrace_polices(): return []")
    assert "did you mean 'headrace_policies'?" in failure()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no luck')", "headrace_policies() raised ValueError: no luck"),
        ("return None", "headrace_policies() returned None, must be a list of Provider"),
        ("return ['fair']", "headrace_policies() returned ['fair'], must be a list of Provider"),
    ],
)
def test_F15_a_hook_that_fails_stops_the_start(install: Install, body: str, reason: str) -> None:
    install("bad", f"def headrace_policies():\n    {body}")
    assert reason in failure()


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("Provider(3, print)", "needs a name and a function to build with"),
        ("Provider('a', None)", "needs a name and a function to build with"),
        ("Provider('a', print, dict)", "options are <class 'dict'>, must be a msgspec.Struct class"),
    ],
)
def test_a_provider_that_makes_no_sense_is_refused(install: Install, provider: str, reason: str) -> None:
    install("odd", f"from headrace.core.providers import Provider\ndef headrace_policies(): return [{provider}]")
    assert reason in failure()


def test_options_that_would_swallow_a_misspelling_are_refused(install: Install) -> None:
    install(
        "loose",
        "import msgspec\nfrom headrace.core.providers import Provider\n"
        "class Options(msgspec.Struct): pass\n"
        "def headrace_policies(): return [Provider('loose', print, Options)]",
    )
    assert "Options needs forbid_unknown_fields=True" in failure()


def test_a_wrapper_is_refused() -> None:
    class Wrapping:
        @pluggy.HookimplMarker("headrace")(wrapper=True)
        def headrace_policies(self) -> object:
            return (yield)

    manager = PluginManager()
    manager.add(Wrapping(), ORIGIN)
    with pytest.raises(PluginError, match="is a wrapper"):
        manager.providers("policy")


def test_an_unknown_name_in_disable_is_refused(install: Install) -> None:
    install("fair", GOOD.format(name="fair"))
    assert "plugins.disable names 'far', which is not installed; did you mean 'fair'?" in failure(disabled("far"))


def test_a_plugin_error_is_a_config_error() -> None:
    assert issubclass(PluginError, ConfigError)

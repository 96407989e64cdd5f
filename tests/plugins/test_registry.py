import msgspec
import pytest

from headrace.core.config import ROLES, Config, EngineConfig, Use
from headrace.core.errors import ConfigError, InvalidParameter, PluginError
from headrace.core.messages import RunnerReady
from headrace.core.providers import CoreContext, ProcessorContext, Provider, TextContext
from headrace.plugins import hookspecs
from headrace.plugins.registry import Origin, Registered, Registry

ORIGIN = Origin("mine", "headrace-mine", "1.0")
TEXT = TextContext(EngineConfig(), None)
CORE = CoreContext(EngineConfig(), RunnerReady(2, 2, (), 1), max_rows=1, clock=float)


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weights: dict[str, float] = {}


def echo(context: object, options: object) -> object:
    return options


def registry(config: Config | None = None, *more: tuple[str, Provider]) -> Registry:
    defaults = Use()
    providers = [(role, Provider(getattr(defaults, role), echo)) for role in ROLES]
    found: dict[str, dict[str, Registered]] = {role: {} for role in hookspecs.PROVIDES}
    for role, provider in [*providers, *more]:
        found[role][provider.name] = Registered(role, provider, ORIGIN)
    return Registry(config or Config(), found, [ORIGIN])


WEIGHTED = ("policy", Provider("weighted", echo, Weights))


def test_an_unknown_choice_lists_the_choices() -> None:
    with pytest.raises(PluginError) as caught:
        registry(Config(use=Use(policy="wighted")), WEIGHTED)
    assert str(caught.value) == (
        "use.policy is 'wighted', which no plugin provides; did you mean 'weighted'? known: fcfs, weighted"
    )


def test_options_become_the_providers_own_struct() -> None:
    config = Config(use=Use(policy="weighted"), options={"policy": {"weights": {"a": 2}}})
    assert registry(config, WEIGHTED).options["policy"] == Weights({"a": 2.0})


def test_without_options_the_defaults_of_the_struct_apply() -> None:
    assert registry(Config(use=Use(policy="weighted")), WEIGHTED).options["policy"] == Weights()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": {"weights": {"a": "x"}}}, "options.policy.weights.a is 'x': expected `float`, got `str`"),
        ({"policy": {"wait": 1}}, "options.policy.wait is unknown; known: weights"),
        ({"plicy": {}}, "options.plicy is unknown; did you mean 'policy'?"),
        ({"kv": {"size": 1}}, "options.kv: kv 'paged' takes no options, got size"),
    ],
)
def test_wrong_options_are_refused_with_their_full_path(options: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry(Config(use=Use(policy="weighted"), options=options), WEIGHTED)
    assert str(caught.value).startswith(message)


def test_the_prompt_hasher_follows_the_kv_manager_and_gets_its_options() -> None:
    hasher = ("prompt_hasher", Provider("hashed", echo))
    kv = ("kv", Provider("hashed", echo, Weights))
    config = Config(use=Use(kv="hashed"), options={"kv": {"weights": {"b": 1}}})
    assert registry(config, hasher, kv).build_prompt_hasher(TEXT) == Weights({"b": 1.0})
    assert registry(None, hasher, kv).build_prompt_hasher(TEXT) is None


def test_without_prefix_caching_nothing_is_hashed() -> None:
    context = TextContext(EngineConfig(enable_prefix_caching=False), None)
    assert registry(None, ("prompt_hasher", Provider("paged", echo))).build_prompt_hasher(context) is None


def test_a_build_that_raises_names_plugin_and_role() -> None:
    def fail(context: object, options: object) -> object:
        raise KeyError("row")

    built = registry(Config(use=Use(tokenizer="bad")), ("tokenizer", Provider("bad", fail)))
    with pytest.raises(
        PluginError, match=r"package headrace-mine 1.0\), tokenizer 'bad': building it raised KeyError: 'row'"
    ):
        built.build_tokenizer(TEXT)


def test_a_typed_error_of_a_build_stays_itself() -> None:
    def fail(context: object, options: object) -> object:
        raise InvalidParameter("wrong")

    built = registry(Config(use=Use(tokenizer="bad")), ("tokenizer", Provider("bad", fail)))
    with pytest.raises(InvalidParameter, match="wrong"):
        built.build_tokenizer(TEXT)


def test_a_built_object_that_lacks_a_method_of_its_protocol_is_refused() -> None:
    class Half:
        Args = None

        def add(self, request: object) -> None: ...

    built = registry(Config(use=Use(policy="half")), ("policy", Provider("half", lambda context, options: Half())))
    with pytest.raises(PluginError, match="what it built, a Half, lacks remove, candidates, victim, on_finish"):
        built.build_policy(CORE)


SCALED = ("logits_processor", Provider("scaled", lambda context, options: echo, Weights))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "scale",
            {},
            "logits_processors names 'scale', which no plugin provides; did you mean 'scaled'? known: scaled",
        ),
        ("scaled", {"wait": 1}, "logits_processors.scaled.wait is unknown; known: weights"),
        ("scaled", {"weights": {"a": "x"}}, "logits_processors.scaled.weights.a is 'x': expected `float`, got `str`"),
    ],
)
def test_what_a_request_says_of_logits_processors_is_checked(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        registry(None, SCALED).check_processor(name, arguments)
    assert (str(caught.value), caught.value.field) == (message, "logits_processors")


def test_a_logits_processor_gets_its_arguments_and_the_size_of_the_vocabulary() -> None:
    built: list[object] = []
    provider = Provider("mine", lambda *given: built.append(given) or echo, Weights)
    registry(None, ("logits_processor", provider)).build_processor(TEXT, "mine", {"weights": {"a": 2}}, 77)
    assert built == [(ProcessorContext(TEXT.config, None, 77), Weights({"a": 2.0}))]


def test_a_role_whose_providers_requests_choose_has_none_in_use() -> None:
    built = registry(None, SCALED)
    assert [built.chosen_name(role) for role in ("policy", "prompt_hasher", "logits_processor")] == [
        "fcfs",
        "paged",
        None,
    ]

from pathlib import Path

import msgspec
import pytest

from headrace.core.config import Config, EngineConfig, Use, load_config, trace_config
from headrace.core.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "plugins.toml"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_apply() -> None:
    assert load_config() == Config()


def test_the_shipped_file_equals_the_defaults() -> None:
    assert load_config(SHIPPED) == Config()


def test_the_shipped_file_shows_every_setting_in_the_order_of_the_code() -> None:
    lines = [line.removeprefix("# ").split(" =")[0] for line in SHIPPED.read_text().splitlines() if " = " in line]
    settings = [field.name for part in (Use, EngineConfig) for field in msgspec.structs.fields(part)]
    assert lines[: len(settings)] == settings


def test_the_argument_comes_before_the_variable_before_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "plugins.toml", "[engine]\nblock_size = 1")
    assert load_config().engine.block_size == 1
    monkeypatch.setenv("HEADRACE_CONFIG", str(write(tmp_path / "two.toml", "[engine]\nblock_size = 2")))
    assert load_config().engine.block_size == 2
    assert load_config(write(tmp_path / "three.toml", "[engine]\nblock_size = 3")).engine.block_size == 3


def test_options_override_the_file_in_use_and_engine(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", '[use]\npolicy = "fair"\n[engine]\nblock_size = 8')
    loaded = trace_config(file, {"policy": "fcfs", "dtype": "float32"})
    assert loaded.config.use.policy == "fcfs"
    assert loaded.config.engine == EngineConfig(block_size=8, dtype="float32")
    assert loaded.origins == {"use.policy": "argument", "engine.dtype": "argument", "engine.block_size": "file"}


def test_options_of_a_provider_go_with_it(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", '[use]\npolicy = "fair"\n[options.policy]\nslack = 2')
    assert load_config(file, {"policy": "fair"}).options == {"policy": {"slack": 2}}
    assert load_config(file, {"policy": "fcfs"}).options == {}


def test_given_options_lie_on_top_of_the_files(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", '[use]\npolicy = "fair"\n[options.policy]\nslack = 2\ndepth = 1')
    assert load_config(file, options={"policy": {"slack": 3}}).options == {"policy": {"slack": 3, "depth": 1}}
    assert load_config(file, {"policy": "a"}, {"policy": {"b": 1}}).options == {"policy": {"b": 1}}


def test_options_that_are_no_table_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"options.policy is 3: expected `object`, got `int`"):
        load_config(options={"policy": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[engine]\nmax_seqs = 3", "engine.max_seqs is unknown; did you mean 'max_num_seqs'?"),
        ('[engine]\ndtype = "int3"', "engine.dtype is 'int3': must be one of 'auto', 'float32', 'bfloat16'"),
        ("[engine]\nblock_size = 0", "engine.block_size is 0, must be at least 1"),
        ("[engine]\nmax_restarts = -1", "engine.max_restarts is -1, must be at least 0"),
        ("[uses]\na = 1", "uses is unknown; did you mean 'use'? known: engine, options, plugins, use"),
        ("use = 3", "use is 3: expected `object`, got `int`"),
        ("[options]\npolicy = 3", "options.policy is 3: expected `object`, got `int`"),
        ("[engine", "Expected ']'"),
    ],
)
def test_a_wrong_file_is_refused_by_name_path_and_value(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "wrong.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(ConfigError, match=r"nowhere\.toml can't be read: No such file"):
        load_config()


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"a\.toml"):
        load_config(tmp_path / "a.toml")


def test_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"engine option 'polcy' is unknown; did you mean 'policy'\? known: async_"):
        load_config(overrides={"polcy": "fcfs"})


def test_an_option_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.max_num_seqs is 'many': expected `int`, got `str`"):
        load_config(overrides={"max_num_seqs": "many"})

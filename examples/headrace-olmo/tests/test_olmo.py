import pytest
from headrace_olmo import FAMILY, OlmoConfig, headrace_model_families

from headrace.core.errors import ModelFileDamaged, UnsupportedModel

CONFIG = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def read(**changed: object) -> OlmoConfig:
    config: OlmoConfig = FAMILY.read_folder("config.json", CONFIG | changed)
    return config


def test_the_limit_is_read() -> None:
    assert (read().clip_qkv, read(clip_qkv=8.0).clip_qkv) == (None, 8.0)


def test_no_parameter_is_a_norm_and_the_head_may_be_tied() -> None:
    names = {parameter.name for parameter in FAMILY.parameters(read())}
    assert len(names) == 2 + 2 * 7
    assert not any("norm" in name for name in names)
    tied = {parameter.name: parameter.tied_to for parameter in FAMILY.parameters(read(tie_word_embeddings=True))}
    assert tied["lm_head.weight"] == "model.embed_tokens.weight"


def test_wrong_configs_are_refused_by_name() -> None:
    with pytest.raises(ModelFileDamaged, match="clip_qkv"):
        read(clip_qkv=-1.0)
    with pytest.raises(UnsupportedModel, match="hidden_act is 'gelu'"):
        read(hidden_act="gelu")


def test_the_family_is_provided_under_its_model_type() -> None:
    (provider,) = headrace_model_families()
    assert provider.name == "olmo"
    assert provider.build(None, None) is FAMILY

"""Facts of runners without a model."""

from headrace.core.config import EngineConfig
from headrace.runners.modelless import DEFAULT_MODEL_LEN, modelless_facts


def test_blocks_suffice_for_all_sequences_by_default() -> None:
    facts = modelless_facts(EngineConfig(max_num_seqs=4, block_size=16), vocab_size=512)
    assert facts.max_model_len == DEFAULT_MODEL_LEN
    assert facts.groups[0].num_blocks * 16 >= 4 * (DEFAULT_MODEL_LEN + 1)


def test_the_config_decides_where_it_says_something() -> None:
    config = EngineConfig(max_model_len=64, num_kv_blocks=9)
    facts = modelless_facts(config, vocab_size=100, windows=(None, 16))
    assert (facts.vocab_size, facts.max_model_len) == (100, 64)
    assert [group.num_blocks for group in facts.groups] == [9, 9]


def test_kv_cache_memory_is_read_against_a_device_of_1_GiB() -> None:
    facts = modelless_facts(EngineConfig(kv_cache_memory="50%", block_size=16), vocab_size=100)
    assert (facts.groups[0].num_blocks + 1) * facts.bytes_per_block == 2**29

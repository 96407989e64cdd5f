"""Paged K/V storage."""

import pytest
import torch

from headrace.core.errors import ConfigError
from headrace.core.messages import KVGroup
from headrace.kv.layout import LayerGroups
from headrace.runners.models.gpt2 import GPT2Config
from headrace.runners.torch_cpu.storage import KVStorage

CONFIG = GPT2Config(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=128,
    num_layers=2,
    num_heads=2,
    context_length=512,
    eps=1e-5,
)


def layout(*num_blocks: int) -> LayerGroups:
    """Put both layers into one group, or each into one of its own."""
    groups = tuple(KVGroup(2 // len(num_blocks), count) for count in num_blocks)
    return LayerGroups(groups, (0, len(groups) - 1))


def test_what_is_written_to_slots_is_read_from_them() -> None:
    storage = KVStorage(CONFIG, layout(4), block_size=8, dtype=torch.float32)
    keys, values = torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    storage.write(1, [torch.tensor([39, 8, 20])], keys, values)
    read_keys, read_values = storage.read(1, torch.tensor([20, 0, 39]))
    assert torch.equal(read_keys, torch.stack([keys[2], torch.zeros(2, 16), keys[0]]))
    assert torch.equal(read_values, torch.stack([values[2], torch.zeros(2, 16), values[0]]))
    assert torch.equal(storage.keys[1][1, 0], keys[1])
    assert not storage.keys[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_is_one_block_more_than_usable_ones(dtype: torch.dtype) -> None:
    storage = KVStorage(CONFIG, layout(4), block_size=8, dtype=dtype)
    assert [kept.shape for kept in storage.keys] == [(5, 8, 2, 16)] * 2
    assert storage.values[0].dtype == dtype
    assert storage.keys[0].data_ptr() % 64 == 0


def test_each_layer_has_the_blocks_and_slots_of_its_group() -> None:
    storage = KVStorage(CONFIG, layout(4, 2), block_size=8, dtype=torch.float32)
    assert [len(kept) for kept in storage.values] == [5, 3]
    keys, slots = torch.randn(1, 2, 16), [torch.tensor([33]), torch.tensor([17])]
    for layer in (0, 1):
        storage.write(layer, slots, keys, keys)
        assert torch.equal(storage.read(layer, slots[layer])[0], keys)


def test_more_than_the_machine_has_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"don't fit in memory .*lower engine\.num_kv_blocks"):
        KVStorage(CONFIG, layout(2**45), block_size=8, dtype=torch.float32)

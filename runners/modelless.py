"""Facts of runners that have no model: script, kvhash and sim."""

from collections.abc import Sequence

from headrace.core.config import EngineConfig
from headrace.core.messages import KVGroup, RunnerReady
from headrace.kv.layout import choose_num_blocks

DEFAULT_MODEL_LEN = 8192
NOMINAL_MEMORY = 2**30
"""Bytes of the device that engine.kv_cache_memory is read against."""
_BYTES_PER_TOKEN = 8


def modelless_facts(config: EngineConfig, vocab_size: int, windows: Sequence[int | None] = (None,)) -> RunnerReady:
    """Make up what a model would say: K/V of 8 bytes a token on a device with 1 GiB, contexts of 8192 by default.

    windows: of each KV group, which has one layer.
    """
    max_model_len = config.max_model_len or DEFAULT_MODEL_LEN
    layer_bytes = _BYTES_PER_TOKEN * config.block_size
    groups = [KVGroup(num_layers=1, num_blocks=0, window=window) for window in windows]
    return RunnerReady(
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        groups=choose_num_blocks(config, max_model_len, groups, layer_bytes, NOMINAL_MEMORY, NOMINAL_MEMORY),
        bytes_per_block=layer_bytes * len(groups),
    )

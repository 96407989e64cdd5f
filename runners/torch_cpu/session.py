"""A loaded model with its K/V storage. Importing this file imports torch, which takes a second or more."""

import logging
from typing import Protocol

import torch
from torch import Tensor

from headrace.core.columns import Floats, Ints
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError
from headrace.core.interfaces import Batch
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext
from headrace.kv.layout import LayerGroups, bytes_per_block, choose_num_blocks, group_layers, memory_of, row_blocks
from headrace.runners.loading.load import LoadedModel, load_model
from headrace.runners.models.generic import GenericModel
from headrace.runners.models.layers import ANY_ROWS, TILES
from headrace.runners.torch_cpu.batched import BatchedForward
from headrace.runners.torch_cpu.generic import GenericForward
from headrace.runners.torch_cpu.machine import STEP_MS, free_memory, physical_cores, total_memory
from headrace.runners.torch_cpu.storage import KVStorage
from headrace.runners.torch_cpu.tiled import TiledForward

_log = logging.getLogger("headrace")
_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Forward(Protocol):
    """One of the two ways to run a batch: batched.py, tiled.py."""

    def hidden(self, batch: Batch) -> Tensor:
        """Write K/V of all tokens, layer by layer, and return the last layer's output (T, hidden)."""

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, vocab_size) logits for (n, hidden) rows of the last hidden()."""


class Session:
    """Everything a TorchModel has after loading. Owner: the compute thread. Raises ModelError, ConfigError."""

    @torch.inference_mode()
    def __init__(self, context: RunnerContext) -> None:
        config = context.config
        threads = config.threads or physical_cores()
        torch.set_num_threads(1)  # weights are read by as many threads, each of which would bring helpers of its own
        dtype = _DTYPES[config.dtype]
        ops = TILES if config.deterministic else ANY_ROWS
        loaded = load_model(context, dtype, ops, threads)
        torch.set_num_threads(threads)
        layer_bytes = _layer_bytes(loaded, config, dtype)
        layout = _layout(loaded, config, layer_bytes)
        self.ready = RunnerReady(
            vocab_size=loaded.config.vocab_size,
            max_model_len=loaded.max_model_len,
            groups=layout.groups,
            bytes_per_block=loaded.config.num_layers * layer_bytes,
            dtype=str(dtype).removeprefix("torch."),
            step_ms=STEP_MS,
            timings=loaded.timings,
        )
        storage = KVStorage(loaded.config, layout, config.block_size, dtype)
        self._forward = _make_forward(loaded, storage, config)
        self._block_size = config.block_size
        self._hidden: Tensor | None = None
        _tell_capacity(self.ready, config, layer_bytes)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> None:
        """Run a batch. Raises IndexError if a token has no block."""
        if min(int(slots.min()) for slots in batch.slots) < self._block_size:
            raise IndexError("a token has no block: its slot lies in the null block")
        self._hidden = self._forward.hidden(batch)

    @torch.inference_mode()
    def logits(self, indices: Ints) -> Floats:
        """Return (n, vocab_size) float32 logits at these places of the last batch."""
        assert self._hidden is not None, "forward() comes before logits()"
        rows = self._hidden[torch.tensor(indices, dtype=torch.int64)]
        found: Floats = self._forward.logits(rows).float().numpy()
        return found


def _make_forward(loaded: LoadedModel, storage: KVStorage, config: EngineConfig) -> Forward:
    if isinstance(loaded.model, GenericModel):
        if config.deterministic:
            raise ConfigError(
                "engine.deterministic is true, but this architecture isn't built in: transformers runs it"
            )
        return GenericForward(loaded.model, storage, config.block_size)
    make = TiledForward if config.deterministic else BatchedForward
    return make(loaded.model, storage, config.block_size)


def _layer_bytes(loaded: LoadedModel, config: EngineConfig, dtype: torch.dtype) -> int:
    model = loaded.config
    return bytes_per_block(1, model.num_kv_heads, model.head_dim, dtype.itemsize, config.block_size)


def _layout(loaded: LoadedModel, config: EngineConfig, layer_bytes: int) -> LayerGroups:
    """Put layers of one window into a group, and give each its blocks."""
    model, longest = loaded.model, loaded.max_model_len
    layers = model.config.layers if isinstance(model, GenericModel) else model.layers
    layout = group_layers([layer.window for layer in layers], longest)
    groups = choose_num_blocks(config, longest, layout.groups, layer_bytes, total_memory(), free_memory())
    return layout._replace(groups=groups)


def _tell_capacity(ready: RunnerReady, config: EngineConfig, layer_bytes: int) -> None:
    longest = ready.max_model_len
    num_requests = [group.num_blocks / row_blocks(group.window, longest, config) for group in ready.groups]
    _log.info(
        "K/V: %.2f GiB in %s blocks hold %d tokens: %.1f requests of %d tokens",
        memory_of(ready.groups, layer_bytes) / 2**30,
        " + ".join(str(group.num_blocks) for group in ready.groups),
        ready.groups[0].num_blocks * config.block_size,
        min(num_requests),
        longest,
    )

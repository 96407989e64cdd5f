"""A loaded model in the native library, with its K/V storage. Owner: NativeModel, on the compute thread."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.config import EngineConfig
from headrace.core.interfaces import Batch
from headrace.core.messages import RunnerReady
from headrace.core.providers import RunnerContext
from headrace.kv.layout import LayerGroups, choose_num_blocks, group_layers
from headrace.runners.batch import WorkerState
from headrace.runners.loading.progress import with_progress
from headrace.runners.models.decoder import DecoderConfig
from headrace.runners.models.rope import Rope
from headrace.runners.native import library as native
from headrace.runners.native.build import choose_target, ensure_library
from headrace.runners.native.library import Library, address
from headrace.runners.native.options import NativeOptions
from headrace.runners.native.read import LANES, read_config
from headrace.runners.native.rows import NativeRows
from headrace.runners.native.sampling import NativeSampler
from headrace.runners.native.tensors import TensorFile, open_tensors
from headrace.runners.native.weights import Weights
from headrace.runners.sampler import Advanced
from headrace.runners.torch_cpu.machine import STEP_MS, free_memory, physical_cores, total_memory

_STORAGE = {"as-is": "as-is", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_KV_BYTES = {"float32": 4, "float16": 2}


class Session:
    """Everything a NativeModel has after loading. Raises ModelError, ConfigError."""

    def __init__(self, context: RunnerContext, options: NativeOptions) -> None:
        clock, config = context.clock, context.config
        times = [clock()]
        self._library = Library(ensure_library(choose_target()))
        self._team = self._engine = 0
        self._weights: Weights | None = None
        self._rows: NativeRows | None = None
        try:
            times.append(clock())
            self._file = open_tensors(context.need_model(), is_dummy=config.load_format == "dummy")
            model = self._read(self._file, options.weights or config.dtype, context.families)
            times.append(clock())
            self._team = self._library.call("hr_team_new", config.threads or physical_cores(), options.pin_threads)
            longest = min(config.max_model_len or model.context_length, model.context_length)
            kv_dtype = self._choose_kv_dtype(options)
            layer_bytes = _layer_bytes(model, config.block_size, kv_dtype)
            layout = _layout(model, config, longest, layer_bytes)
            self._kept = self._make_engine(model, layout, config.block_size, options.mode, kv_dtype)
            times.append(clock())
        except BaseException:
            self.close()
            raise
        library, read, pack = np.diff(times).tolist()
        self.ready = RunnerReady(
            vocab_size=model.vocab_size,
            max_model_len=longest,
            groups=layout.groups,
            bytes_per_block=model.num_layers * layer_bytes,
            dtype=kv_dtype,
            step_ms=STEP_MS,
            timings={"library": library, "read": read, "pack": pack},
        )
        self._logits: Floats = np.empty((0, model.vocab_size), dtype=np.float32)
        self.sampler = NativeSampler(self._library, self._team, model.vocab_size)

    def forward(self, batch: Batch) -> Floats:
        """Run a batch; returns the (L, vocab_size) logits at its logit_places.

        They lie in memory that the next batch uses again: the system would have to clear fresh pages for each.
        """
        num_logits = len(batch.logit_places)
        logits = self._room(num_logits)
        places = native.pointers(batch.slots), native.pointers(batch.tables)
        step = native.Step(
            num_tokens=len(batch.token_ids),
            num_rows=len(batch.rows),
            num_logits=num_logits,
            token_ids=address(batch.token_ids),
            positions=address(batch.positions),
            starts=address(batch.starts),
            slots=address(places[0]),
            tables=address(places[1]),
            table_width=batch.tables[0].shape[1],
            logit_tokens=address(batch.logit_places),
            logits=address(logits),
        )
        self._library.call("hr_step", self._engine, step)
        return logits

    def advance(self, state: WorkerState, rows: Ints, asked: Ints) -> Advanced:
        """Run a step of these rows, as worker.Advance says."""
        if self._rows is None or self._rows.state is not state:
            self._free_rows()
            self._rows = NativeRows(self._library, self._team, self._engine, state, self.sampler)
        return self._rows.advance(rows, asked, self._room(len(rows)))

    def logits(self, indices: Ints) -> Floats:
        """Return (len(indices), vocab_size) logits at these places of the last batch."""
        wanted = np.ascontiguousarray(indices, dtype=np.int32)
        found = np.empty((len(wanted), self.ready.vocab_size), dtype=np.float32)
        if len(wanted):
            self._library.call("hr_logits", self._engine, address(wanted), len(wanted), address(found))
        return found

    def close(self) -> None:
        """Give everything back; the session is of no use any more."""
        self._free_rows()
        if self._engine:
            self._library.free("hr_engine_free", self._engine)
        if self._weights is not None:
            self._weights.free()
        if self._team:
            self._library.free("hr_team_free", self._team)
        self._engine = self._team = 0
        self._weights = None

    def _room(self, num_logits: int) -> Floats:
        if len(self._logits) < num_logits:
            self._logits = np.empty((num_logits, self.ready.vocab_size), dtype=np.float32)
        return self._logits[:num_logits]

    def _free_rows(self) -> None:
        if self._rows is not None:
            self._rows.free()
        self._rows = None

    def _read(self, file: TensorFile, storage: str, families: Mapping[str, Callable[[], Any]]) -> DecoderConfig:
        """Read the config and check all tensors."""
        family, model = read_config(file, families)
        kept_as = _STORAGE["as-is" if storage == "auto" else storage]
        self._weights = Weights(file, family, model, self._library, kept_as)
        return model

    def _choose_kv_dtype(self, options: NativeOptions) -> str:
        assert self._weights is not None
        if options.kv_dtype != "auto":
            return options.kv_dtype
        return "float32" if self._weights.are_float32() else "float16"

    def _make_engine(
        self, model: DecoderConfig, layout: LayerGroups, block_size: int, mode: str, kv_dtype: str
    ) -> list[Any]:
        """Pack all weights and build the engine; returns what it points to."""
        weights = self._weights
        assert weights is not None
        layers = [
            native.Layer(
                **weights.layer(self._team, index),
                window=layer.window or 0,
                group=layout.of_layer[index],
                rotary=layer.rope,
            )
            for index, layer in enumerate(with_progress(model.layers, len(model.layers), "layers"))
        ]
        num_blocks: NDArray[np.int32] = np.array([group.num_blocks + 1 for group in layout.groups], dtype=np.int32)
        frequencies = [rope.frequencies(model.head_dim) for rope in model.ropes]
        all_layers, rotaries = _array_of(layers), _array_of(_rotaries(model.ropes, frequencies))
        made = native.Model(
            num_layers=model.num_layers,
            hidden=model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            inner=model.intermediate_size,
            vocab=model.vocab_size,
            gate=native.GATES[model.activation],
            mode=native.MODES[mode],
            norm_eps=model.rms_eps,
            query_scale=model.attention_scale,
            block_size=block_size,
            is_half_cache=kv_dtype == "float16",
            num_groups=len(num_blocks),
            num_rotaries=len(rotaries),
            num_blocks=address(num_blocks),
            rotaries=ctypes.addressof(rotaries),
            embedding=native.Embedding(*weights.embedding(), model.embedding_scale),
            norm=weights.norm(),
            head=weights.head(self._team),
        )
        self._engine = self._library.call("hr_engine_new", self._team, made, all_layers)
        return [num_blocks, frequencies, rotaries]


def _layer_bytes(model: DecoderConfig, block_size: int, kv_dtype: str) -> int:
    """Count the bytes of K and V of one block in one layer: K is padded to whole vectors of tokens."""
    width = -(-block_size // LANES) * LANES
    return model.num_kv_heads * model.head_dim * (width + block_size) * _KV_BYTES[kv_dtype]


def _layout(model: DecoderConfig, config: EngineConfig, longest: int, layer_bytes: int) -> LayerGroups:
    """Put layers of one window into a group, and give each its blocks."""
    layout = group_layers([layer.window for layer in model.layers], longest)
    groups = choose_num_blocks(config, longest, layout.groups, layer_bytes, total_memory(), free_memory())
    return layout._replace(groups=groups)


def _rotaries(ropes: Sequence[Rope], frequencies: Sequence[Floats]) -> list[native.Rotary]:
    return [native.Rotary(address(found), rope.scale()) for rope, found in zip(ropes, frequencies, strict=True)]


def _array_of(structures: Sequence[Any]) -> Any:
    """Lay structures out one after the other, as C reads them."""
    return (type(structures[0]) * len(structures))(*structures)

"""Runner `native`: C++ kernels behind one call per step, on the file's own numbers. No torch."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.columns import Floats, Ints
from headrace.core.interfaces import Batch, RunnerContext
from headrace.core.messages import KVGroup, RunnerReady
from headrace.kv.layout import choose_num_blocks
from headrace.runners.batch import WorkerState
from headrace.runners.native import library as native
from headrace.runners.native.build import choose_target, ensure_library
from headrace.runners.native.library import Library, address
from headrace.runners.native.options import NativeOptions
from headrace.runners.native.sampling import NativeSampler
from headrace.runners.native.spec import HEAD_DIM_STEP, ModelSpec
from headrace.runners.native.tensors import open_tensors
from headrace.runners.native.weights import Weights
from headrace.runners.sampler import Sampled
from headrace.runners.torch_cpu.machine import free_memory, physical_cores, total_memory

_STORAGE = {"as-is": "as-is", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_KV_BYTES = {"float32": 4, "float16": 2}


class NativeModel:
    """A StepModel in the native library. Owner: the compute thread of its worker.

    Every row's logits are bitwise independent of batch mates, chunks and the number of threads.
    """

    def __init__(self, context: RunnerContext, options: NativeOptions) -> None:
        self._context, self._options = context, options
        self._library: Library | None = None
        self._team = self._engine = 0
        self._weights: Weights | None = None
        self._sampler: NativeSampler | None = None
        self._kept: list[Any] = []
        """What the library points to."""
        self._vocab = 0
        self._logits: Floats | None = None
        """Those of the rows that sample, computed within the step."""
        self._sampling: Ints = np.zeros(0, dtype=np.int32)

    def load(self) -> RunnerReady:
        """Build or load the library, read the weights, set up K/V storage. Raises ModelError, ConfigError."""
        config, clock = self._context.config, self._context.clock
        times = [clock()]
        library = self._library = Library(ensure_library(choose_target()))
        times.append(clock())
        file = open_tensors(self._context.need_model())
        spec = file.spec()
        times.append(clock())
        self._team = library.call("hr_team_new", config.threads or physical_cores(), self._options.pin_threads)
        self._weights = Weights(file, spec, library, self._team, self._storage())
        ready = self._facts(spec)
        self._sampler = NativeSampler(library, self._team, spec.vocab)
        self._make_engine(library, spec, ready)
        times.append(clock())
        seconds = [round(end - begin, 6) for begin, end in pairwise(times)]
        return RunnerReady(
            vocab_size=ready.vocab_size,
            max_model_len=ready.max_model_len,
            groups=ready.groups,
            bytes_per_block=ready.bytes_per_block,
            dtype=ready.dtype,
            timings=dict(zip(("library", "read", "pack"), seconds, strict=True)),
        )

    def forward(self, batch: Batch) -> None:
        """Write K/V of all tokens, and compute their hidden states and the logits of rows that sample."""
        tokens = np.ascontiguousarray(batch.starts[batch.samples + 1] - 1)
        logits = np.empty((len(tokens), self._vocab), dtype=np.float32)
        arrays = [np.ascontiguousarray(a) for a in (batch.token_ids, batch.positions, batch.starts, tokens)]
        slots = [np.ascontiguousarray(a) for a in batch.slots]
        tables = [np.ascontiguousarray(a) for a in batch.tables]
        slot_places, table_places = native.pointers(slots), native.pointers(tables)
        step = native.Step(
            num_tokens=len(batch.token_ids),
            num_rows=len(batch.rows),
            num_logits=len(tokens),
            token_ids=address(arrays[0]),
            positions=address(arrays[1]),
            starts=address(arrays[2]),
            slots=address(slot_places),
            tables=address(table_places),
            table_width=tables[0].shape[1],
            logit_tokens=address(arrays[3]),
            logits=address(logits),
        )
        self._loaded().call("hr_step", self._engine, step)
        self._sampling, self._logits = tokens, logits

    def logits(self, indices: Ints) -> Floats:
        """Return (len(indices), vocab_size) float32 logits at these places of the last forward's flat token list.

        Those of the rows that sample are there already, once.
        """
        if self._logits is not None and np.array_equal(indices, self._sampling):
            found, self._logits = self._logits, None
            return found
        wanted = np.ascontiguousarray(indices, dtype=np.int32)
        found = np.empty((len(wanted), self._vocab), dtype=np.float32)
        if len(wanted):
            self._loaded().call("hr_logits", self._engine, address(wanted), len(wanted), address(found))
        return found

    def sample(self, logits: Floats, state: WorkerState, rows: Ints) -> Sampled:
        """Choose tokens, as runners/sampler.py's function of this name does."""
        assert self._sampler is not None, "a model is loaded before it samples"
        return self._sampler.sample(logits, state, rows)

    def close(self) -> None:
        """Give everything back; idempotent."""
        if self._library is None:
            return
        if self._engine:
            self._library.free("hr_engine_free", self._engine)
        if self._weights is not None:
            self._weights.free()
        if self._team:
            self._library.free("hr_team_free", self._team)
        self._engine = self._team = 0
        self._weights = self._library = self._sampler = None
        self._kept.clear()

    def _loaded(self) -> Library:
        assert self._library is not None, "a model is loaded before it runs, and not used after close()"
        return self._library

    def _storage(self) -> str:
        chosen = self._options.weights or {"auto": "as-is"}.get(self._context.config.dtype, self._context.config.dtype)
        return _STORAGE[chosen]

    def _facts(self, spec: ModelSpec) -> RunnerReady:
        config = self._context.config
        longest = min(config.max_model_len or spec.context_length, spec.context_length)
        width = -(-config.block_size // HEAD_DIM_STEP) * HEAD_DIM_STEP  # K's blocks are whole vectors of tokens
        numbers = spec.num_layers * spec.num_kv_heads * spec.head_dim * (width + config.block_size)
        block_bytes = numbers * _KV_BYTES[self._options.kv_dtype]
        num_blocks = choose_num_blocks(config, longest, block_bytes, total_memory(), free_memory())
        self._vocab = spec.vocab
        return RunnerReady(
            vocab_size=spec.vocab,
            max_model_len=longest,
            groups=(KVGroup(spec.num_layers, num_blocks),),
            bytes_per_block=block_bytes,
            dtype=self._options.weights or config.dtype,
        )

    def _make_engine(self, library: Library, spec: ModelSpec, ready: RunnerReady) -> None:
        weights = self._weights
        assert weights is not None
        frequencies = [rope.frequencies(spec.head_dim) for rope in spec.ropes]
        ropes = (native.Rotary * len(spec.ropes))(
            *(native.Rotary(address(f), rope.scale()) for f, rope in zip(frequencies, spec.ropes, strict=True))
        )
        num_blocks: NDArray[np.int32] = np.array([group.num_blocks + 1 for group in ready.groups], dtype=np.int32)
        layers = (native.Layer * spec.num_layers)(
            *(
                native.Layer(**weights.layer(index), window=layer.window or 0, group=0, rotary=layer.rope)
                for index, layer in enumerate(spec.layers)
            )
        )
        model = _model_struct(spec, self._context.config.block_size, self._options)
        model.num_blocks, model.num_groups = address(num_blocks), len(num_blocks)
        model.rotaries, model.num_rotaries = _address_of(ropes), len(ropes)
        model.embedding = native.Embedding(*weights.embedding(), spec.embedding_scale)
        model.norm, model.head = weights.norm(), weights.head()
        self._kept += [frequencies, ropes, num_blocks, layers, model]
        self._engine = library.call("hr_engine_new", self._team, model, layers)


def _model_struct(spec: ModelSpec, block_size: int, options: NativeOptions) -> native.Model:
    return native.Model(
        num_layers=spec.num_layers,
        hidden=spec.hidden,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        inner=spec.inner,
        vocab=spec.vocab,
        gate=native.GATES[spec.gate],
        mode=native.MODES[options.mode],
        norm_eps=spec.norm_eps,
        query_scale=spec.query_scale,
        block_size=block_size,
        is_half_cache=options.kv_dtype == "float16",
    )


def _address_of(structures: Any) -> int:
    import ctypes

    return ctypes.addressof(structures)

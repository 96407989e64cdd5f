"""The side of `make bench-overhead` that runs vLLM's own Scheduler and BlockPool, under the Python that has vLLM."""

import json
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
import vllm
from loads import BLOCK_SIZE, MAX_MODEL_LEN, STOP_ID, serve
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": MAX_MODEL_LEN,
}
"""Nothing is computed, but the scheduler wants a model's config."""


class VLLM:
    """The scheduler as the engine builds it by default: asynchronous, with prefix caching; statistics are off."""

    version = vllm.__version__

    def __init__(self) -> None:
        init_none_hash(sha256)
        self._folder = tempfile.TemporaryDirectory()
        (Path(self._folder.name) / "config.json").write_text(json.dumps(MODEL))
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._count = 0

    def start(self, num_rows: int, num_batched_tokens: int, num_blocks: int) -> None:
        """Begin anew."""
        model = ModelConfig(
            model=self._folder.name, skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_MODEL_LEN
        )
        scheduler = SchedulerConfig(
            max_num_seqs=num_rows,
            max_num_batched_tokens=num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=True,
        )
        cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks + 1
        config = VllmConfig(
            model_config=model, scheduler_config=scheduler, cache_config=cache, device_config=DeviceConfig("cpu")
        )
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        kv = KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups)
        self._scheduler = AsyncScheduler(
            vllm_config=config,
            kv_cache_config=kv,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self._in_flight: deque[tuple[SchedulerOutput, list[bool]]] = deque()

    def add(self, prompt: list[int], max_tokens: int) -> None:
        """Submit a request, which hashes its prompt."""
        self._count += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        params.update_from_generation_config({}, STOP_ID)
        self._scheduler.add_request(Request(str(self._count), prompt, params, None, block_hasher=self._hasher))

    def schedule(self) -> None:
        """Make a step."""
        self._made = self._scheduler.schedule()

    def record(self) -> None:
        """Note which of its requests sample."""
        requests = self._scheduler.requests
        samples = [not requests[request].is_prefill_chunk for request in self._made.num_scheduled_tokens]
        self._in_flight.append((self._made, samples))

    def compute(self, new_id: Callable[[], int]) -> None:
        """Make up a result."""
        self._step, samples = self._in_flight.popleft()
        requests = list(self._step.num_scheduled_tokens)
        token_ids = [[new_id()] if is_sampling else [] for is_sampling in samples]
        places = {request: place for place, request in enumerate(requests)}
        self._done = ModelRunnerOutput(req_ids=requests, req_id_to_index=places, sampled_token_ids=token_ids)

    def update(self) -> None:
        """Take it in."""
        self._outputs = self._scheduler.update_from_output(self._step, self._done)

    def count_ended(self) -> int:
        """Count requests that ended."""
        return sum(output.finish_reason is not None for of in self._outputs.values() for output in of.outputs)

    def make_pool(self, num_blocks: int) -> Callable[[int, int], None]:
        """Make a block pool."""
        pool = BlockPool(num_blocks, enable_caching=True, hash_block_size=BLOCK_SIZE)

        def turn(count: int, times: int) -> None:
            for _ in range(times):
                pool.free_blocks(reversed(pool.get_new_blocks(count)))

        return turn


if __name__ == "__main__":
    serve(VLLM())

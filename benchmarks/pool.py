"""Throughput over the size of the KV pool, and that the tokens stay the same: `make bench-pool`.

32 requests of 128 tokens in and 64 out at once, on pools from all that they want down to a fifth of it.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace import LLM, SamplingParams

MODEL = "smollm2-135m-instruct"
NUM_REQUESTS, NUM_IN, NUM_OUT, BLOCK_SIZE = 32, 128, 64, 16
SHARES = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)


def measure(shares: tuple[float, ...], repeats: int) -> dict[str, Any]:
    """Measure each pool in turns; the first share is the reference for the tokens."""
    prompts = np.random.default_rng(0).integers(20, 49000, (NUM_REQUESTS, NUM_IN)).tolist()
    params = SamplingParams(max_tokens=NUM_OUT, temperature=0, ignore_eos=True)
    wanted = NUM_REQUESTS * -(-(NUM_IN + NUM_OUT) // BLOCK_SIZE)
    rates: dict[float, list[float]] = {share: [] for share in shares}
    preemptions, tokens = {}, {}
    for _ in range(repeats):
        for share in shares:
            options = {"num_kv_blocks": int(share * wanted), "block_size": BLOCK_SIZE, "max_num_seqs": NUM_REQUESTS}
            with LLM(MODEL, runner="native", max_model_len=512, **options) as llm:
                start = time.perf_counter()
                results = llm.generate(prompts, params, use_tqdm=False)
                rates[share].append(NUM_REQUESTS * NUM_OUT / (time.perf_counter() - start))
                tokens[share] = [result.token_ids for result in results]
                preemptions[share] = llm.stats().preemptions
                assert all(result.finish_reason == "length" for result in results)
    return {
        "blocks_wanted": wanted,
        "pools": [
            {
                "share": share,
                "tokens_per_s": statistics.median(rates[share]),
                "preemptions": preemptions[share],
                "same_tokens": tokens[share] == tokens[shares[0]],
            }
            for share in shares
        ],
    }


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three pools, once each")
    parser.add_argument("--output", type=Path, default=Path("build/bench-pool.json"))
    given = parser.parse_args()
    results = measure((1.0, 0.5, 0.2), 1) if given.quick else measure(SHARES, 3)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(results, indent=2))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

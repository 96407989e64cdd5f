"""Random sampling parameters, for tests that compare samplers."""

from typing import Any

import numpy as np

from headrace.core.messages import RowSampling


def random_request(vocab: int, rng: np.random.Generator) -> RowSampling:
    """Make sampling parameters, each of them off in about half of the requests."""

    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    def some_ids(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, vocab, rng.integers(1, most + 1)).tolist())

    changes = {
        "presence_penalty": maybe(float(rng.uniform(-2, 2)), 0.0),
        "frequency_penalty": maybe(float(rng.uniform(-2, 2)), 0.0),
        "repetition_penalty": maybe(float(rng.uniform(0.5, 2)), 1.0),
        "logit_bias": maybe({token_id: float(rng.uniform(-9, 9)) for token_id in some_ids(5)}, {}),
        "allowed_ids": maybe(maybe(some_ids(40), None), None),
        "bad_words": maybe((some_ids(1), (int(rng.integers(0, 30)), int(rng.integers(0, vocab)))), ()),
        "min_tokens": maybe(int(rng.integers(0, 40)), 0),
        "stop_ids": some_ids(4),
    }
    return RowSampling(
        temperature=float(rng.choice([0.0, 1e-6, 0.3, 1.0, 2.5])),
        top_k=maybe(int(rng.choice([1, 2, 7, 50, vocab - 1, vocab])), 0),
        top_p=maybe(float(rng.choice([1e-6, 0.3, 0.9, 0.999999])), 1.0),
        min_p=maybe(float(rng.choice([1e-4, 0.1, 1.0])), 0.0),
        seed=int(rng.integers(-(2**63), 2**63 - 1)),
        logprobs=maybe(int(rng.integers(0, 21)), None),
        logits_processors=maybe({"alternate": {}}, {}),
        **maybe(changes, {}),
    )

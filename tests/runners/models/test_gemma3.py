"""Gemma 3 270M's real file, against transformers on the same file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from batches import Blocks, load_torch, log_softmax, run
from tiny_llama import reference_logits

from headrace.core.text.tokenizer import load_tokenizer

NUM_GENERATED = 16
PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time there was a",
    "The three primary colours are",
    "Der Himmel ist blau, weil",
    "1, 1, 2, 3, 5, 8,",
    "Q: Who wrote Hamlet?\nA:",
    "In 1969 the first humans landed on",
    "The quick brown fox jumps over the lazy dog. " * 60,
]
"""The last one is longer than the window of 512 tokens."""


@pytest.fixture(scope="module")
def reference(gemma3: Path) -> Any:
    """The file as transformers dequantises it, in float32."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(gemma3.parent, gguf_file=gemma3.name, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.verify
def test_greedy_tokens_and_logprobs_are_those_of_transformers_on_the_same_file(gemma3: Path, reference: Any) -> None:
    tokenizer = load_tokenizer(gemma3)
    model = load_torch(gemma3, max_model_len=1024, num_kv_blocks=64)
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        generated = reference.generate(ids, max_new_tokens=NUM_GENERATED, do_sample=False, eos_token_id=None)
        sequence = generated[0].tolist()
        expected = log_softmax(reference_logits(reference, sequence)[-NUM_GENERATED - 1 :])
        (logits,) = run(model, [(Blocks(64).row(sequence), len(sequence))])
        found = log_softmax(logits[-NUM_GENERATED - 1 :])
        assert (found.argmax(-1) == expected.argmax(-1)).all(), prompt
        likely = expected > -20
        np.testing.assert_allclose(found[likely], expected[likely], atol=1e-4, err_msg=prompt)

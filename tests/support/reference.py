"""What transformers says about SmolLM2: the reference that greedy tokens and log probabilities must equal.

Run as a script it writes golden/smollm2.json anew: python tests/support/reference.py FILE.gguf
"""

import json
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent.parent / "integration" / "golden" / "smollm2.json"
NUM_TOKENS = 64

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "Here is the English alphabet: ABC",
    "def fibonacci(n):\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at",
    "The quick brown fox",
    "import numpy as np\n\ndef softmax(x):\n",
    "Dear Sir or Madam,\n",
    "To be, or not to be",
    "Ingredients: flour, sugar, butter",
    "In 1969, humans first",
    "Der schnelle braune Fuchs",
    "La lune est",
    "Los gatos son",
    "SELECT name FROM users WHERE",
    "<html>\n<body>\n<h1>",
    '{"name": "Alice", "age":',
    "Q: What is the largest planet?\nA:",
    "The three laws of robotics are",
    "Roses are red,",
    "My favourite book is",
    "Photosynthesis is the process by which",
    "x = 5\ny = 7\nprint(x + y)  #",
    "A haiku about autumn:\n",
    "The stock market fell today because",
    "How to tie a tie: Step 1.",
    "Breaking news:",
    "The mitochondria is the",
    "Albert Einstein was born in",
    "List three fruits:\n1.",
    "The opposite of hot is",
    "Monday, Tuesday, Wednesday,",
    "for (int i = 0; i < 10; i++) {",
    "Translate to French: Good morning ->",
    "She opened the door and",
    "The history of Rome begins",
    "E = mc^2 means that",
    "Abstract. We propose a new method for",
    "Chapter 1\n\nIt was a dark and stormy night",
    "😀 is an emoji that means",
    "The meaning of the word 世界 is",
    "   leading spaces matter",
    "ALL CAPS TEXT IS",
    "a",
    "\n",
    "The cat sat on the mat. " * 12,
    "Numbers: " + " ".join(str(i) for i in range(60)),
    "def f(x):\n    return x * 2\n\n" * 8 + "def g(",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property "
    "of some one or other of their daughters.",
]


class Reference:
    """The model in float32, as transformers reads the same file."""

    def __init__(self, gguf: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        self._torch = torch
        self._config = GenerationConfig
        folder = str(gguf.parent)
        self.model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32).eval()
        self.model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)

    def greedy(self, token_ids: list[int], num_tokens: int = NUM_TOKENS) -> dict[str, list[Any]]:
        """Continue a prompt greedily; returns ids, their logprobs and the gaps between the two highest logits."""
        torch = self._torch
        prompt = torch.tensor([token_ids])
        output = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=self._config(max_new_tokens=num_tokens, output_logits=True, return_dict_in_generate=True),
        )
        logits = torch.cat(output.logits).float()
        top, ids = logits.topk(2).values, output.sequences[0, len(token_ids) :]
        logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        return {
            "ids": ids.tolist(),
            "logprobs": [round(value, 6) for value in logprobs.tolist()],
            "gaps": [round(value, 6) for value in (top[:, 0] - top[:, 1]).tolist()],
        }


def main() -> None:
    """Write the golden file."""
    from headrace.core.text.tokenizer import load_tokenizer

    gguf = Path(sys.argv[1])
    tokenizer = load_tokenizer(gguf)
    reference = Reference(gguf)
    golden = []
    for prompt in PROMPTS:
        token_ids = tokenizer.encode(prompt)
        golden.append({"prompt": prompt, "prompt_ids": token_ids, **reference.greedy(token_ids)})
        print(len(golden), repr(prompt[:40]), file=sys.stderr)
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False, indent=None).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main()

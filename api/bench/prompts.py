"""Prompts of a wanted length for any tokenizer: random common words, as many as a server's own count says."""

import random
from pathlib import Path

import msgspec

from headrace.bench.client import BenchFailed, Client

_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part"
)
_WORDS = _TEXT.split()
_SHORT, _LONG = 20, 84
"""Words of the two prompts that tell how many tokens a word has."""


async def random_prompts(client: Client, number: int, input_len: int, seed: int) -> list[str]:
    """Make prompts of about `input_len` tokens, with no common start. Raises BenchFailed."""
    draw = random.Random(seed)
    short = await client.count_prompt_tokens(_words(draw, _SHORT))
    long = await client.count_prompt_tokens(_words(draw, _LONG))
    per_word = (long - short) / (_LONG - _SHORT)
    if per_word <= 0:
        raise BenchFailed(
            f"{_SHORT} words have {short} tokens and {_LONG} words {long}: prompts can't be made to length"
        )
    overhead = short - _SHORT * per_word
    num_words = max(1, round((input_len - overhead) / per_word))
    return [_words(draw, num_words) for _ in range(number)]


def _words(draw: random.Random, number: int) -> str:
    return " ".join(draw.choices(_WORDS, k=number))


def read_prompts(file: Path, number: int) -> list[str]:
    """Read prompts from a file of JSON lines, each a string or an object with `prompt`; repeated as often as needed."""
    try:
        lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines() if line.strip()]
        prompts = [line["prompt"] if isinstance(line, dict) else line for line in lines]
    except (OSError, KeyError, msgspec.DecodeError) as error:
        raise BenchFailed(f"--prompts {file}: {type(error).__name__}: {error}") from None
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise BenchFailed(f"--prompts {file}: every line must be a string or an object with prompt, at least one")
    return [prompts[index % len(prompts)] for index in range(number)]

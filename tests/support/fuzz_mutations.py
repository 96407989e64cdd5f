"""Random changes of files: of bytes, of JSON trees, of GGUF metadata."""

import json
import random
import struct
from typing import Any

from ggufs import GGUFBuilder

_TEXTS = ["", "a", " ", "\x00", "x" * 3000, "<|im_end|>", "{{", "{% for a in b %}", "(a+)+$", "[", "é" * 9, "$A", "a:b"]
_NUMBERS = [0, 1, 2, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 60, 1 << 63, (1 << 64) - 1]


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Change some bytes, most of them near the start, where headers are."""
    raw = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        reach = rng.choice([64, 1024, len(raw), len(raw)])
        at = rng.randrange(min(reach, len(raw)) or 1)
        size = rng.choice([1, 2, 4, 8, 16])
        match rng.randrange(7):
            case 0:
                raw[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                raw[at : at + 8] = struct.pack("<Q", rng.choice(_NUMBERS))
            case 2:
                raw[at : at + 4] = struct.pack("<I", rng.choice(_NUMBERS) & 0xFFFFFFFF)
            case 3:
                del raw[at : at + size]
            case 4:
                raw[at:at] = rng.randbytes(size)
            case 5:
                raw[at:at] = raw[at : at + 8 * size]
            case 6:
                del raw[at + size :]
    return bytes(raw)


def _odd_value(rng: random.Random) -> Any:
    nested: Any = 0
    for _ in range(rng.choice([3, 200, 5000])):
        nested = [nested]
    text = rng.choice([*_TEXTS, "\ud83d"])
    numbers = [-1, 0, 1, 3, 1 << 31, 1 << 40, 1 << 64, 10**30, -(10**30), 0.5, 1e308, float("nan"), float("inf")]
    return rng.choice(
        [None, True, False, [], {}, {"": 0}, nested, text, text, rng.choice(numbers), rng.choice(numbers)]
    )


def mutate_json(rng: random.Random, content: bytes) -> bytes:
    """Change values somewhere in the tree, or its text."""
    if rng.randrange(4) == 0:
        return mutate_bytes(rng, content)
    tree = json.loads(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                break
            key = rng.choice(keys)
            child = node[key]
            if isinstance(child, dict | list) and child and rng.randrange(5):
                node = child
                continue
            match rng.randrange(4):
                case 0:
                    del node[key]
                case 1 if isinstance(node, dict):
                    node[rng.choice([*_TEXTS, "\ud83d", key + "x"])] = node.pop(key)
                case _:
                    node[key] = _odd_value(rng)
            break
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b'{"a":' + b"[" * 100_000


def mutate_keys(rng: random.Random, keys: dict[str, Any]) -> dict[str, Any]:
    """Change values of GGUF metadata; the file stays sound as far as GGUF goes."""
    changed = dict(keys)
    for name in rng.sample(list(keys), rng.choice([1, 1, 2, 4])):
        value = changed[name]
        if rng.randrange(8) == 0:
            del changed[name]
        elif isinstance(value, list) and rng.randrange(4):
            changed[name] = _odd_list(rng, value)
        else:
            changed[name] = _odd_scalar(rng)
    return changed


def _odd_list(rng: random.Random, values: list[Any]) -> list[Any]:
    """Change elements of an array, or how many there are; its type stays."""
    values = list(values)
    for _ in range(rng.choice([1, 1, 5, 50])):
        at = rng.randrange(len(values))
        match values[at], rng.randrange(4):
            case _, 0:
                values[at] = rng.choice(values)
            case str(), _:
                values[at] = rng.choice([*_TEXTS, "h" * 600, "x" * 20_000, values[at] * 2, values[at][:-1], "<0x41>"])
            case float(), _:
                values[at] = rng.choice([0.0, -0.0, 1e38, -1e38, float("nan"), float("inf"), -float("inf"), 0.5])
            case int(), _:
                values[at] = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, -1, (1 << 31) - 1])
    return rng.choice([values, values, values, values[1:], values + values[:1], []])


def _odd_scalar(rng: random.Random) -> tuple[int, bytes]:
    """Return a GGUF type and the bytes of a value of it."""
    number = rng.choice(_NUMBERS)
    real = rng.choice([0.0, -1.0, 1e-30, 1e38, float("nan"), float("inf"), 0.5])
    text = rng.choice([*_TEXTS, "qwen2", "bert", "t5", "llama", "gpt2"])
    return rng.choice(
        [
            (4, struct.pack("<I", number & 0xFFFFFFFF)),
            (5, struct.pack("<i", rng.choice([-1, -(1 << 31)]))),
            (6, struct.pack("<f", real)),
            (7, bytes([rng.randrange(2)])),
            (8, GGUFBuilder.text(text)),
            (10, struct.pack("<Q", number)),
            (12, struct.pack("<d", real)),
        ]
    )


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Change the header as JSON and keep its length right, or change any bytes."""
    if rng.randrange(2):
        return mutate_bytes(rng, content)
    (size,) = struct.unpack("<Q", content[:8])
    header = mutate_json(rng, content[8 : 8 + size])
    return struct.pack("<Q", len(header)) + header + content[8 + size :]

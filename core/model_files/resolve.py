"""From what a user calls a model to its file or folder."""

from pathlib import Path

from headrace.core.errors import ModelNotFound
from headrace.core.model_files.cache import Progress, model_file, pull_entry
from headrace.core.model_files.catalogue import CATALOGUE


def resolve_model(name: str | Path, *, pull: bool = False, progress: Progress = lambda line: None) -> Path:
    """Return the model folder or GGUF file of this name.

    name: a folder with config.json, a .gguf file, or a name of the catalogue; what exists on disk comes first.
    pull: download a catalogue model that isn't in the cache yet, telling `progress`.
    Raises ModelNotFound saying what to do.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _model_folder(path)
    if path.is_file():
        return _gguf_file(path)
    entry = CATALOGUE.get(str(name))
    if entry is None:
        known = ", ".join(CATALOGUE)
        raise ModelNotFound(f"{str(name)!r} is no model folder, no .gguf file, and not in the catalogue: {known}")
    cached = model_file(entry)
    if cached.exists():
        return cached
    if not pull:
        raise ModelNotFound(f"{name} isn't in the cache yet; run: headrace pull {name}")
    return pull_entry(entry, progress)


def _model_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"{path} has no config.json, so it is no model folder")
    return path


def _gguf_file(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise ModelNotFound(f"{path} is neither a .gguf file nor a model folder")
    return path

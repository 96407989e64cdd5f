"""headrace pull: bring a model of the catalogue into the cache."""

from typing import Annotated

import typer


def pull(model: Annotated[str, typer.Argument(help="Name in the catalogue, such as smollm2-135m-instruct.")]) -> None:
    """Download a model into the cache, checked by its checksum."""
    from rich.console import Console

    from headrace.core.model_files.cache import pull as pull_model

    console = Console(stderr=True)
    with console.status(f"pulling {model}") as status:
        path = pull_model(model, status.update)
    print(path)

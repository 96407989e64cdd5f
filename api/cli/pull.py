"""headrace pull: bring a model of the catalogue or the hub into its cache."""

from typing import Annotated

import typer


def pull(
    model: Annotated[
        str, typer.Argument(help="Name in the catalogue, such as smollm2-135m-instruct, or hub id: organisation/name.")
    ],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.")] = None,
) -> None:
    """Download a model into the cache, checked by its checksum."""
    from rich.console import Console

    from headrace.core.model_files.resolve import pull_model

    console = Console(stderr=True)
    path = pull_model(model, revision, lambda line: console.print(line, markup=False, highlight=False))
    print(path)

"""`python -m ampd.launch.make_model NAME FOLDER`: make a built-in model. Run by `models.resolve_model`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ampd.errors import SetupError


@click.command()
@click.argument("name", type=click.Choice(["demo", "tiny", "small"]))
@click.argument("folder", type=click.Path(path_type=Path))
def main(name: Literal["demo", "tiny", "small"], folder: Path) -> None:
    """Make the model NAME in FOLDER, which must not exist."""
    try:
        if name == "demo":
            from ampd.launch.demo_model import build_demo_model

            build_demo_model(folder)
        else:
            from ampd.launch.random_model import build_random_model

            build_random_model(folder, name)
    except (SetupError, ImportError) as e:
        raise click.ClickException(str(e)) from None


if __name__ == "__main__":
    main()

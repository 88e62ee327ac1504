"""`python -m ampd.profiler`: the same as `ampd profile`."""

from __future__ import annotations

import sys

import click

from ampd.errors import AmpdError, ConfigError
from ampd.profiler.cli import profile

if __name__ == "__main__":
    try:
        profile.main(prog_name="python -m ampd.profiler")
    except AmpdError as e:
        click.echo(f"ampd: {e}", err=True)
        sys.exit(2 if isinstance(e, ConfigError) else 1)

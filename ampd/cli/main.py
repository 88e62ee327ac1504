"""The `ampd` command. Errors of ampd are one line on standard error.

Exit code 2: the configuration is wrong in itself (an unknown key, an impossible value). 1: this machine lacks what it names (model
folder, profile, Redis, port, package), or a process of the graph died. `bench` and `demo` exit with 1 when their run
found something wrong, and with 2 after any error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ampd import __version__
from ampd.cli.lazy import LazyGroup
from ampd.errors import AmpdError, ConfigError

COMMANDS = {
    "serve": "ampd.cli.serve:serve",
    "config": "ampd.cli.config:config",
    "bench": "ampd.bench.cli:bench",
    "demo": "ampd.bench.cli:demo",
    "profile": "ampd.profiler.cli:profile",
    "sim": "ampd.simulator.commands.cli:sim",
    "trace": "ampd.bench.traces.cli:trace",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ampd")
def cli() -> None:
    """Adaptive multi-round prefill/decode serving for NVIDIA Dynamo."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    try:
        cli.main(args=args, prog_name="ampd")
    except AmpdError as e:
        click.echo(f"ampd: {e}", err=True)
        sys.exit(2 if isinstance(e, ConfigError) else 1)


if __name__ == "__main__":
    main()

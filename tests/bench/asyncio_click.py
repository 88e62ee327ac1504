"""Run a click command beside the test's own event loop: the commands start a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from click.testing import CliRunner, Result


async def invoke(command: click.Command, args: Sequence[str]) -> Result:
    return await asyncio.to_thread(lambda: CliRunner().invoke(command, list(args), catch_exceptions=False))

"""A click group whose commands are imported when they are called, so that one that cannot be imported harms no other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from ampd.errors import SetupError


class LazyGroup(click.Group):
    """`commands` maps a name to `module:attribute`."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._lazy.get(cmd_name)
        return super().get_command(ctx, cmd_name) if target is None else _load(cmd_name, target)


def _load(name: str, target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except ImportError as e:
        return _unavailable(name, str(e))
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is {type(command).__name__}, expected a click command")
    return command


def _unavailable(name: str, why: str) -> click.Command:
    """Stands for a command whose module cannot be imported; says why when called."""

    def fail() -> None:
        raise SetupError(f"'{name}' is not available: {why}; run 'make setup'")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
    return click.Command(name, callback=fail, context_settings=settings, short_help=f"(not available: {why})")

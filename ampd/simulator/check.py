"""What can be refused before a simulation begins, in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NoReturn

from ampd.errors import ConfigError, ProfileError
from ampd.policy.types import CostModel
from ampd.simulator.types import Group, Setup, TraceSession


def check(setup: Setup, cost: CostModel, sessions: Sequence[TraceSession]) -> None:
    """Raises ConfigError for a setup that cannot run or sessions that it cannot serve; ProfileError for a theta without costs."""
    check_setup(setup)
    _check_costs(setup, cost)
    check_sessions(sessions)
    _check_room(setup, sessions)


def check_setup(setup: Setup) -> None:
    """Raises ConfigError."""
    for i, group in enumerate(setup.groups):
        _check_group(f"groups[{i}]", group, setup.block_size)
    if not any(g.role == "decode" for g in setup.groups):
        _refuse("groups: there is no decode worker; give at least one group the role 'decode'")
    for name, value in (("ttft_s", setup.ttft_s), ("itl_s", setup.itl_s), ("delays.report_s", setup.delays.report_s)):
        if not (isfinite(value) and value > 0):
            _refuse(f"{name} = {value}: must be above 0 seconds")
    for name, value in (
        ("delays.decide_s", setup.delays.decide_s),
        ("delays.hop_s", setup.delays.hop_s),
        ("delays.changed_s", setup.delays.changed_s),
    ):
        if not (isfinite(value) and value >= 0):
            _refuse(f"{name} = {value}: must be 0 seconds or more")
    if setup.coordinators < 1:
        _refuse(f"coordinators = {setup.coordinators}: at least 1 is needed")
    if setup.local_slots < 1:
        _refuse(f"local_slots = {setup.local_slots}: at least 1 is needed")
    for name, tokens in (("batched_tokens", setup.batched_tokens), ("prefill_tokens", setup.prefill_tokens)):
        if tokens < 0:
            _refuse(f"{name} = {tokens}: must be 0 (off) or the tokens of a step")


def _check_group(name: str, group: Group, block_size: int) -> None:
    for field, least in (("theta", 1), ("replicas", 1), ("chunk", 1), ("max_running", 1), ("kv_tokens", block_size)):
        value = getattr(group, field)
        if value < least:
            why = "; the model leaves no room for KV at this theta, use a larger one" if field == "kv_tokens" else ""
            _refuse(f"{name}.{field} = {value}: must be at least {least}{why}")


def _check_costs(setup: Setup, cost: CostModel) -> None:
    """Every cost function that will be asked for is known."""
    thetas = {role: sorted({g.theta for g in setup.groups if g.role == role}) for role in ("prefill", "decode")}
    for theta in sorted({*thetas["prefill"], *thetas["decode"]}):
        cost.t_pre(0, 1, theta)
    for decode in thetas["decode"]:
        if cost.t_dec(1, 1, decode) <= 0:
            raise ProfileError(
                f"t_dec of theta {decode} is 0 for one sequence: the profile knows no decode steps; measure it again"
            )
        cost.t_mixed(1, 1, 1, decode)
        for prefill in sorted({*thetas["prefill"], *(thetas["decode"] if len(thetas["decode"]) > 1 else ())}):
            cost.t_kv(1, decode, prefill, "history")
            cost.t_kv(1, prefill, decode, "increment")


def check_sessions(sessions: Sequence[TraceSession]) -> None:
    """Raises ConfigError for a trace that means nothing."""
    before = 0.0
    for session in sessions:
        if not (isfinite(session.arrives_s) and session.arrives_s >= before):
            _refuse(
                f"session {session.name}: arrives_s = {session.arrives_s} comes after one of {before}; sort the sessions by arrival"
            )
        before = session.arrives_s
        if not session.rounds:
            _refuse(f"session {session.name}: has no rounds; leave it out")
        for number, round in enumerate(session.rounds, 1):
            where = f"session {session.name}, round {number}"
            if round.prompt < 1 or round.output < 1:
                _refuse(f"{where}: prompt = {round.prompt}, output = {round.output} tokens; both must be at least 1")
            if not 0 <= round.history <= round.prompt:
                _refuse(f"{where}: history = {round.history} tokens; must be from 0 to the prompt's {round.prompt}")
            if not (isfinite(round.gap_s) and round.gap_s >= 0):
                _refuse(f"{where}: gap_s = {round.gap_s}; must be 0 seconds or more")


def _check_room(setup: Setup, sessions: Sequence[TraceSession]) -> None:
    """Any decode worker may have to hold any round."""
    room = min(g.kv_tokens // setup.block_size * setup.block_size for g in setup.groups if g.role == "decode")
    for session in sessions:
        for number, round in enumerate(session.rounds, 1):
            if round.prompt + round.output > room:
                _refuse(
                    f"session {session.name}, round {number}: prompt + output = {round.prompt} + {round.output} tokens do not fit "
                    f"into a decode worker's KV pool of {room}; use a larger theta or leave the session out"
                )


def _refuse(line: str) -> NoReturn:
    raise ConfigError(line)

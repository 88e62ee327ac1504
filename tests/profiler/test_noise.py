"""A noisy machine is told from a quiet one. CPU times are given here; `test_real_load_is_seen` reads the machine's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence

import psutil
import pytest

from ampd.profiler.noise import CpuTimes, Watch, cpu_times, lost_share

_CPUS = 2


def times(wall: float, *, stolen: float = 0.0, busy: float = 0.0, own: float = 0.0) -> CpuTimes:
    return CpuTimes(wall, wall * _CPUS, stolen, busy, own)


def watch(*readings: CpuTimes) -> Watch:
    given: Iterator[CpuTimes] = iter(readings)
    made = Watch(read=lambda processes: next(given))
    made.begin()
    return made


def test_own_work_is_no_noise() -> None:
    assert watch(times(0.0), times(10.0, busy=15.0, own=14.9)).report() == []


def test_others_work_is_named_with_its_size() -> None:
    (line,) = watch(times(0.0), times(10.0, busy=15.0, own=9.0)).report()
    assert "other processes used 0.60 CPUs" in line


def test_stolen_time_is_named_with_its_share() -> None:
    (line,) = watch(times(0.0), times(10.0, stolen=1.0)).report()
    assert "hypervisor took 5.0 %" in line


def test_a_sample_that_lost_the_cpu_is_spoilt() -> None:
    made = watch(times(0.0), times(1.0), times(2.0, busy=1.0, own=1.0), times(3.0), times(4.0, busy=0.5), times(5.0))
    with made.sample() as verdict:
        pass
    assert verdict == [False]
    with made.sample() as verdict:
        pass
    assert verdict == [True]
    assert made.spoilt == 1


def test_too_short_a_sample_and_one_beyond_its_retries_are_not_judged() -> None:
    made = watch(times(0.0), times(1.0), times(1.1, busy=0.1), times(2.0), times(4.0, busy=2.0))
    with made.sample() as verdict:
        pass
    assert verdict == [False]
    with made.sample(judged=False) as verdict:
        pass
    assert verdict == [False]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_real_load_is_seen() -> None:
    """A process that is not this run's spins; one that is, does not count."""
    spin = "while True: pass"
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", spin)
    try:
        await asyncio.sleep(0.3)
        own: Sequence[psutil.Process] = [psutil.Process()]
        before = cpu_times(own)
        known = [*own, psutil.Process(stranger.pid)]
        known_before = cpu_times(known)
        await asyncio.sleep(1.0)
        foreign = lost_share(before, cpu_times(own))
        rest = lost_share(known_before, cpu_times(known))
        assert foreign > rest + 0.1
    finally:
        stranger.kill()
        await stranger.wait()

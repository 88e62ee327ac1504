"""Samples are taken at the engines' usual pace. The times of the fixed work are given here."""

from __future__ import annotations

from collections.abc import Iterator

from ampd.profiler.pace import Engine, Pace


def paced(*later: float) -> Pace:
    """Times of the work in the order of asking, after enough of 1.0 for each engine to know what is usual."""
    given: Iterator[float] = iter(later)
    known = dict.fromkeys(("prefill", "decode"), 10)

    async def work(engine: Engine) -> float:
        known[engine] -= 1
        return 1.0 if known[engine] >= 0 else next(given)

    return Pace(work)


async def test_an_engine_is_slow_while_its_work_takes_longer_than_usual() -> None:
    pace = paced(1.1, 1.2, 1.0)
    assert [await pace.slow(["prefill"]) for _ in range(3)] == [False, True, False]


async def test_one_slow_engine_of_two_is_enough_and_another_does_not_matter() -> None:
    pace = paced(1.0, 1.0, 1.0, 1.4, 1.0)
    assert [await pace.slow(["prefill", "decode"]) for _ in range(2)] == [False, True]
    assert not await pace.slow(["prefill"])


async def test_settling_waits_for_the_usual_pace() -> None:
    pace = paced(1.5, 1.5, 1.5, 1.05, 1.5)
    await pace.settle(["decode"], 60.0)
    assert pace.ratios == [1.5, 1.5, 1.5, 1.05]


async def test_patience_has_an_end() -> None:
    pace = paced(*[1.5] * 50)
    await pace.settle(["decode"], 0.0)
    assert pace.ratios == [1.5]


async def test_what_is_slow_for_long_becomes_usual() -> None:
    pace = paced(*[1.5] * 300)
    slow = [await pace.slow(["decode"]) for _ in range(300)]
    assert slow[0]
    assert not slow[-1]
    assert slow == sorted(slow, reverse=True)


async def test_a_changing_pace_is_reported() -> None:
    pace = paced(*[1.0] * 20, *[1.6] * 4)
    for _ in range(20):
        await pace.slow(["decode"])
    assert pace.report() == []
    for _ in range(4):
        await pace.slow(["decode"])
    (line,) = pace.report()
    assert "1.60 times its median time in a tenth of 24 runs" in line

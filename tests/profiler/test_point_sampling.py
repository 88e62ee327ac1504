from __future__ import annotations

import math
import random
from statistics import median

import pytest

from ampd.errors import ProfileError
from ampd.profiler.sampling import Plan, sample, spread
from ampd.profiler.spots import Spot

SPOTS = [Spot("prefill", (0, n)) for n in (1, 2, 3, 4)]


class Machine:
    """Answers with the time of the spot, times a factor that `noise` gives; keeps what it was asked."""

    def __init__(self, noise: dict[Spot, float] | None = None, spoil: int = 0) -> None:
        self.asked: list[Spot] = []
        self._noise, self._spoil, self._rng = noise or {}, spoil, random.Random(0)

    async def measure(self, spot: Spot) -> float | None:
        self.asked.append(spot)
        if self._spoil:
            self._spoil -= 1
            return None
        width = self._noise.get(spot, 0.001)
        return spot.args[1] * (1 + self._rng.uniform(-width, width))


async def test_a_quiet_point_gets_few_samples_and_a_noisy_one_more() -> None:
    machine = Machine(noise={SPOTS[0]: 0.2})
    taken = await sample(machine.measure, SPOTS, Plan(least=3, most=10, tolerance=0.03))
    assert [len(taken[spot]) for spot in SPOTS] == [10, 3, 3, 3]


async def test_rounds_visit_every_open_point_in_orders_of_their_own() -> None:
    machine = Machine()
    await sample(machine.measure, SPOTS, Plan(least=6, most=6, tolerance=0.0))
    rounds = [machine.asked[i : i + 4] for i in range(0, 24, 4)]
    assert all(set(r) == set(SPOTS) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1


async def test_samples_that_are_there_are_not_taken_again() -> None:
    machine = Machine()
    have = {SPOTS[0]: [1.0, 1.0, 1.0], SPOTS[1]: [2.0]}
    recorded: list[Spot] = []
    taken = await sample(
        machine.measure, SPOTS, Plan(least=3, most=5, tolerance=0.03), have=have, record=lambda spot, seconds: recorded.append(spot)
    )
    assert SPOTS[0] not in machine.asked
    assert machine.asked.count(SPOTS[1]) == 2
    assert recorded == machine.asked
    assert taken[SPOTS[0]] == [1.0, 1.0, 1.0]
    assert taken[SPOTS[1]][0] == 2.0


async def test_a_spoilt_sample_is_taken_again_but_not_for_ever() -> None:
    machine = Machine(spoil=2)
    taken = await sample(machine.measure, SPOTS, Plan(least=2, most=2, tolerance=0.1))
    assert all(len(samples) == 2 for samples in taken.values())
    assert len(machine.asked) == 10
    hopeless = Machine(spoil=10**6)
    taken = await sample(hopeless.measure, SPOTS, Plan(least=2, most=2, tolerance=0.1))
    assert not any(taken.values())


async def test_beyond_the_budget_every_point_gets_one_sample_and_no_more() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    machine = Machine()
    taken = await sample(machine.measure, SPOTS, Plan(least=5, most=9, tolerance=0.0, budget_s=0.5), clock=clock)
    assert [len(samples) for samples in taken.values()] == [1, 1, 1, 1]


async def test_progress_ends_at_the_total() -> None:
    seen: list[tuple[int, int]] = []
    machine = Machine()
    await sample(machine.measure, SPOTS, Plan(2, 2, 0.1), progress=lambda done, total, what: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[0] == (0, 4)
    assert seen[-1] == (4, 4)


def test_the_spread_is_that_of_the_median() -> None:
    """Of many draws of known median, about 95 % state an interval that holds it."""
    rng = random.Random(3)
    inside = 0
    for _ in range(400):
        samples = [rng.gauss(1.0, 0.1) for _ in range(6)]
        inside += abs(median(samples) - 1.0) <= spread(samples) * median(samples)
    assert 0.92 < inside / 400 < 1.0
    assert math.isinf(spread([1.0]))
    assert spread([1.0, 1.0]) == 0
    assert spread([1.0, 1.0, 1.0, 5.0]) > 0.5, "one stray among few is seen"


@pytest.mark.parametrize("name", ["prefill/512/64", "decode/4/1024", "mixed/4/1024/256", "history/2048", "increment/1"])
def test_a_spot_is_its_name(name: str) -> None:
    assert Spot.parse(name).name == name


@pytest.mark.parametrize("name", ["", "prefill", "prefill/1", "decode/1/2/3", "history/x", "t_pre/1/2", "increment/-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="names no point"):
        Spot.parse(name)


def test_a_batch_s_context_is_that_of_all_sequences_with_what_they_add() -> None:
    assert Spot("decode", (4, 128)).point == (4, 4 * (128 + 8))
    assert Spot("mixed", (2, 100, 64)).point[0] == 2
    assert Spot("mixed", (2, 100, 64)).point[2] == 64
    assert Spot("prefill", (0, 7)).point == (0, 7)

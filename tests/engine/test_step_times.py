"""Step times are learned from a wrong cost model; reads under way are estimated from those that have ended. No engine runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from engine_pair import engine, free_ports, graph

from ampd.cost_model import CoarseCostModel
from ampd.errors import ProfileError
from ampd.workers.kv.facts import FactBook
from ampd.workers.kv.settings import KvSettings
from ampd.workers.kv.step_times import StepTimes, StepWork

MODEL = CoarseCostModel()


def true_s(work: StepWork) -> float:
    """Four times slower than the model at decoding, ten times faster at prefilling."""
    decode = 4 * MODEL.t_dec(work.batch, work.context, 1) if work.batch else 0.0
    return decode + (MODEL.t_pre(work.history, work.chunk + 1, 1) - MODEL.t_pre(work.history, 1, 1)) / 10


def mixed(rng: Random) -> StepWork:
    return StepWork(rng.randint(1, 8), rng.randint(100, 9000), rng.choice([0, 0, 64, 200, 512]), rng.randint(0, 4000))


def learned(times: StepTimes, steps: int, noise: Callable[[], float] = lambda: 1.0) -> StepTimes:
    rng = Random(0)
    for _ in range(steps):
        work = mixed(rng)
        times.observe(work, true_s(work) * noise())
    return times


def worst_error(times: StepTimes) -> float:
    rng = Random(1)
    return max(abs(times.predict(work) / true_s(work) - 1) for work in (mixed(rng) for _ in range(200)))


def test_both_parts_are_learned_within_a_few_steps() -> None:
    assert worst_error(StepTimes(MODEL, 1, measured=False)) > 0.5
    assert worst_error(learned(StepTimes(MODEL, 1, measured=False), 40)) < 0.02


def test_a_measured_model_is_corrected_too() -> None:
    assert worst_error(learned(StepTimes(MODEL, 1, measured=True), 300)) < 0.02


def test_noise_is_averaged_and_a_stall_is_no_slow_engine() -> None:
    rng = Random(2)
    times = learned(StepTimes(MODEL, 1, measured=False), 300, lambda: rng.uniform(0.8, 1.2))
    assert worst_error(times) < 0.35
    work = StepWork(4, 4000, 0, 0)
    before = times.predict(work)
    times.observe(work, 1000.0)
    assert times.predict(work) < 1.5 * before


def test_prefills_without_a_batch_calibrate_the_prefill_part() -> None:
    times = StepTimes(MODEL, 1, measured=False)
    assert not times.calibrated
    assert times.predict(StepWork()) == 0
    for _ in range(3):
        times.observe(StepWork(chunk=512), 3 * MODEL.t_pre(0, 512, 1))
    assert times.calibrated
    assert times.predict(StepWork(chunk=512, history=512)) == pytest.approx(3 * MODEL.t_pre(512, 512, 1))


def test_predictions_never_fall_as_the_chunk_grows() -> None:
    times = learned(StepTimes(MODEL, 1, measured=False), 40)
    seconds = [times.predict(StepWork(4, 2000, chunk, 300)) for chunk in range(0, 512, 8)]
    assert seconds == sorted(seconds)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_link_owes_what_the_reads_under_way_still_take() -> None:
    clock = Clock()
    book = FactBook(clock, lambda tokens: tokens / 1000)
    assert book.link_s() == 0
    book.reading("a", 2000)
    book.reading("b", 1000)
    assert book.link_s() == pytest.approx(3.0)
    clock.now = 0.5
    assert book.link_s() == pytest.approx(2.5)
    clock.now = 5.0
    assert book.link_s() == pytest.approx(2.0), "as late as it is"
    clock.now = 3.0
    book.received(["a"], [])
    book.take("b")
    assert book.link_s() == 0
    book.reading("c", 1000)
    # The one read that has ended took 1.5 times as long as expected; a fifth of that is believed.
    assert book.link_s() == pytest.approx(1.1)


def test_a_lost_read_is_owed_no_more_and_teaches_nothing() -> None:
    clock = Clock()
    book = FactBook(clock, lambda tokens: tokens / 1000)
    book.reading("a", 1000)
    clock.now = 50.0
    book.received(["a"], ["a"])
    book.reading("b", 1000)
    assert book.link_s() == pytest.approx(1.0)


def test_settings_survive_the_way_into_the_engine() -> None:
    settings = KvSettings(local_prefill="slack", itl_target_s=0.05, prefill_chunk=256, theta=2, profile=None)
    assert KvSettings.read({"other": 1, **settings.section()}) == settings
    assert settings.cost_model() == MODEL


async def test_a_profile_of_another_model_is_refused_before_the_engine_starts(tiny_model: Path, tmp_path: Path) -> None:
    missing = graph(tiny_model, profile=str(tmp_path / "none.json"))
    with pytest.raises(ProfileError, match="no such file"):
        await engine(missing, "decode", free_ports(1)[0]).start()

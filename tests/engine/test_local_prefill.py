"""What the decode worker's scheduler puts into each step, by policy.local_prefill. No engine runs: see scheduled.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from engine_pair import BLOCK
from scheduled import TARGET_S, Engine, Played, make_engine, real_step_s

from ampd.cost_model import CoarseCostModel
from ampd.policy.chunks import ChunkLimits
from ampd.workers.kv.chunk_bound import ChunkBound
from ampd.workers.kv.params import LOAD
from ampd.workers.kv.step_times import StepTimes, StepWork

BATCH, PROMPT = 4, 2048


def decoding(engine: Engine, answer: int = 400, **request: float) -> list[str]:
    """A batch that has its first tokens and is a few steps on."""
    ids = [engine.add(40, answer, **request) for _ in range(BATCH)]
    engine.run(lambda: engine.has_begun(*ids))
    for _ in range(10):
        engine.step()
    return ids


def prefilled(engine: Engine, *prompts: str) -> list[Played]:
    return engine.run(lambda: engine.is_over(*prompts))


@pytest.fixture(params=[0, 1], ids=["", "async"])
def slack(tiny_model: Path, request: pytest.FixtureRequest) -> Engine:
    return make_engine(tiny_model, "slack", ahead=request.param)


def test_chunks_follow_the_slack_of_the_batch(slack: Engine) -> None:
    """After 0.14 s steps under a target of 0.5 s there is much to spend; then the target itself is what is left."""
    batch = decoding(slack, itl_target_s=0.3)
    steps = prefilled(slack, *[slack.add(PROMPT, 1) for _ in range(6)])
    sizes = [sum(s.prefilled.values()) for s in steps]
    assert all(s.decoded == set(batch) for s in steps), "the batch decodes in every step"
    assert sum(sizes) == 6 * PROMPT
    assert max(sizes[:3]) > 1.3 * max(sizes[-10:])
    # 0.285 s less the batch's own 0.14 s are 145 tokens here.
    assert 125 < max(sizes[-10:]) < 150
    assert 2 * 0.3 < max(s.seconds for s in steps) <= 3 * 0.3
    assert all(0.25 < slack.itl_s(i) <= 0.3 for i in batch)


def test_the_tightest_request_bounds_the_chunk_and_the_graphs_target_is_the_default(slack: Engine) -> None:
    loose = decoding(slack)
    wide = slack.add(PROMPT, 1)
    most = max(sum(s.prefilled.values()) for s in prefilled(slack, wide))
    tight = slack.add(40, 300, itl_target_s=0.25)
    slack.run(lambda: slack.has_begun(tight))
    sizes = [sum(s.prefilled.values()) for s in prefilled(slack, slack.add(PROMPT, 1))]
    assert max(sizes[4:]) < 100 < max(sizes[1:]) < 300 < most, "it spends what it is ahead, and then has its target"
    assert slack.itl_s(tight) <= 0.25
    assert all(slack.itl_s(i) <= TARGET_S for i in loose)


def test_a_batch_without_slack_does_not_starve_a_prefill(slack: Engine) -> None:
    batch = decoding(slack, itl_target_s=0.001)
    steps = prefilled(slack, slack.add(1000, 1))
    sizes = [sum(s.prefilled.values()) for s in steps]
    assert min(sizes[:-1]) >= 16
    # A quarter of 0.14 s are 35 tokens.
    assert max(sizes) < 80
    assert len(steps) < 1000 / 16
    assert all(s.decoded == set(batch) for s in steps)


def test_an_idle_engine_takes_whole_chunks(slack: Engine) -> None:
    sizes = [sum(s.prefilled.values()) for s in prefilled(slack, slack.add(PROMPT, 1), slack.add(PROMPT, 1))]
    assert min(sizes[:3]) >= 512
    assert len(sizes) <= 8


def test_prompts_take_turns_and_short_ones_join_a_step_that_has_room(slack: Engine) -> None:
    decoding(slack)
    long = slack.add(PROMPT, 1)
    behind = [slack.add(20, 1), slack.add(600, 1), slack.add(20, 1)]
    steps = prefilled(slack, long, *behind)
    last_of_long = max(n for n, s in enumerate(steps) if long in s.prefilled)
    assert all(set(s.prefilled) == {long} for s in steps[:last_of_long])
    assert all(sum(s.prefilled.values()) <= 512 for s in steps)
    order = [next(n for n, s in enumerate(steps) if i in s.prefilled) for i in behind]
    assert order == sorted(order)
    assert any(len(s.prefilled) > 1 for s in steps)


class Exact(StepTimes):
    """Knows the machine."""

    calibrated = True

    def __init__(self) -> None:
        super().__init__(CoarseCostModel(), 1, measured=True)

    def predict(self, work: StepWork) -> float:
        return real_step_s(work.batch, work.chunk)


def test_a_fresh_request_gets_every_token_in_its_time_although_a_prompt_waits(slack: Engine) -> None:
    """Planned ahead or not: its first token under way counts, and so does the time that this step will still take."""
    slack.scheduler.bound = ChunkBound(Exact(), ChunkLimits(max_tokens=512), TARGET_S, lambda: slack.now)
    begun = slack.add(40, 30, itl_target_s=0.3)
    slack.add(3 * PROMPT, 1)
    slack.run(lambda: slack.is_over(begun))
    times = slack.left[begun]
    gaps = [b - a for a, b in pairwise(times)]
    assert max(gaps) < 0.29
    assert min(gaps[:-1]) > 0.27


def test_what_prefill_costs_is_probed_with_care(slack: Engine) -> None:
    """An engine that has only had remote prefills, and no profile."""
    decoding(slack)
    cost = CoarseCostModel()
    sizes = [
        ChunkBound(StepTimes(cost, 1, measured), ChunkLimits(max_tokens=512), 9.0, lambda: slack.now).budget(running, 0)
        for measured, running in ((False, slack.scheduler.running), (True, slack.scheduler.running), (False, []))
    ]
    assert sizes == [64, 512, 512]


def test_chunked_takes_the_workers_chunk_whatever_the_targets(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, "chunked")
    batch = decoding(engine, itl_target_s=0.001)
    steps = prefilled(engine, engine.add(PROMPT, 1))
    assert [list(s.prefilled.values()) for s in steps] == [[512]] * 4
    assert all(s.decoded == set(batch) for s in steps)


def test_exclusive_pauses_the_batch(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, "exclusive")
    batch = decoding(engine)
    steps = prefilled(engine, engine.add(PROMPT, 1), engine.add(PROMPT, 1))
    assert all(s.decoded == set() for s in steps)
    assert engine.step().decoded == set(batch)


def test_a_pause_ends_when_there_is_no_room_for_the_prefill(tiny_model: Path) -> None:
    """The batch holds the blocks that the prompt needs: it has to end first."""
    engine = make_engine(tiny_model, "exclusive", blocks=70)
    batch = decoding(engine, answer=100)
    prompt = engine.add(PROMPT, 1)
    engine.run(lambda: engine.is_over(prompt))
    assert engine.is_over(*batch)


def test_a_paused_batch_keeps_its_places(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, "exclusive", seqs=BATCH)
    ids = [*decoding(engine, answer=50), engine.add(PROMPT, 1), engine.add(PROMPT, 1)]
    while not engine.is_over(*ids):
        engine.step()
        assert len(engine.scheduler.running) <= BATCH


@pytest.mark.parametrize("mode", ["slack", "exclusive", "chunked"])
def test_nothing_is_lost_when_blocks_run_out(tiny_model: Path, mode: str) -> None:
    """Preempted, resumed, and every request gets all its tokens."""
    engine = make_engine(tiny_model, mode, blocks=40)
    ids = [engine.add(200, 150) for _ in range(4)] + [engine.add(600, 30) for _ in range(2)]
    engine.run(lambda: engine.is_over(*ids))
    assert [len(engine.left[i]) for i in ids] == [150] * 4 + [30] * 2
    assert len(engine.scheduler.bound) == 0


def test_the_load_is_reported_with_each_step(slack: Engine) -> None:
    ids = decoding(slack)
    slack.step()
    stats = slack.scheduler.make_stats()
    load = stats.kv_connector_stats[LOAD]
    held = [40 + len(slack.left[i]) - 1 + slack.ahead for i in ids]
    assert load["context"] == sum(held)
    assert load["kv_written"] == sum(-(-tokens // BLOCK) * BLOCK for tokens in held)
    assert load["link_s"] == 0


@pytest.mark.parametrize("others", [64, 320, 1000])
def test_kv_written_is_the_clock_by_which_the_prefix_cache_forgets(tiny_model: Path, others: int) -> None:
    """Of a prompt that much is left as the pool has room for beside what was written since; its tail goes first."""
    engine = make_engine(tiny_model, "slack", blocks=101)
    manager, total = engine.scheduler.kv_cache_manager, 100 * BLOCK

    def prefill(tokens: int, seed: int | None = None) -> int:
        prefilled(engine, engine.add(tokens, 1, seed=seed))
        written: int = engine.scheduler.make_stats().kv_connector_stats[LOAD]["kv_written"]
        return written

    def cached() -> int:
        request = engine.request(1001, 1, seed=-1)
        tokens: int = manager.get_computed_blocks(request)[1]
        return tokens

    since = prefill(1000, seed=-1)
    seen = set()
    for _ in range(2 * total // others):
        left = min(1000 // BLOCK * BLOCK, max(0, total - (prefill(others) - since)))
        assert left <= cached() <= left + others
        seen.add(left > 0)
    assert seen == {True, False}

"""The slack rule, in a simulated batch whose steps last exactly as predicted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampd.policy.chunks import AnswerLengths, ChunkLimits, DecodeProgress, prefill_budget, step_allowance

LIMITS = ChunkLimits(max_tokens=512)
STEP_S, TOKEN_S = 0.010, 0.0002


def predict(tokens: int, step_s: float = STEP_S) -> float:
    return step_s + TOKEN_S * tokens


def fresh(itl_target_s: float, now: float = 0.0) -> DecodeProgress:
    return DecodeProgress(itl_target_s, now, 0)


def test_nothing_running_takes_a_whole_chunk() -> None:
    assert step_allowance(0.0, [], STEP_S, LIMITS) == inf
    assert prefill_budget(0.0, [], lambda n: 1e9, LIMITS) == 512


def test_a_fresh_batch_allows_its_target_less_the_margin() -> None:
    assert step_allowance(5.0, [fresh(0.030, 5.0)], STEP_S, LIMITS) == pytest.approx(0.0285)
    # 18.5 ms beside the batch's own 10 are 92 tokens, in whole grains 88.
    assert prefill_budget(5.0, [fresh(0.030, 5.0)], predict, LIMITS) == 88


def test_the_tightest_request_decides() -> None:
    running = [fresh(1.0), fresh(0.030), fresh(0.5)]
    assert prefill_budget(0.0, running, predict, LIMITS) == 88


def test_a_loose_target_allows_the_whole_chunk_and_no_more() -> None:
    assert prefill_budget(0.0, [fresh(1.0)], predict, LIMITS) == 512


def test_what_a_request_is_ahead_is_spent_and_no_step_is_longer_than_a_burst() -> None:
    """100 tokens at a third of the target: 1.85 s ahead. One step of all that would be seen in every percentile."""
    ahead = DecodeProgress(0.030, 0.0, 100)
    assert step_allowance(1.0, [ahead], STEP_S, LIMITS) == pytest.approx(3 * 0.0285)
    slightly = DecodeProgress(0.030, 0.0, 1)
    assert step_allowance(0.019, [slightly], STEP_S, LIMITS) == pytest.approx(0.0285 + 0.0095)


def test_what_a_request_is_behind_is_paid_back_at_once() -> None:
    behind = DecodeProgress(0.030, 0.0, 1)
    assert step_allowance(0.038, [behind], STEP_S, LIMITS) == pytest.approx(0.0285 - 0.0095)


def test_a_request_that_will_go_on_may_be_behind_by_part_of_what_it_can_make_up() -> None:
    """Each of 9 tokens after the coming one makes up 28.5 - 12.5 ms, beside as little prefill as there can be."""
    behind = DecodeProgress(0.030, 0.0, 1, left=10)
    assert step_allowance(0.100, [behind], STEP_S, LIMITS) == pytest.approx(2 * 0.0285 - 0.100 + 0.75 * 9 * 0.016)
    assert step_allowance(0.0, [replace(behind, left=1000)], STEP_S, LIMITS) == pytest.approx(3 * 0.0285)
    slow = 0.0300  # a batch that is slower than the target makes up nothing
    assert step_allowance(0.038, [behind], slow, LIMITS) == pytest.approx(1.25 * slow)


def test_answers_are_expected_to_be_as_long_as_they_were_of_late() -> None:
    answers = AnswerLengths()
    assert answers.left(0, 100) == 0
    for tokens in (10, 30):
        answers.ended(tokens)
    assert (answers.left(5, 100), answers.left(5, 8), answers.left(50, 100)) == (15, 3, 0)
    for _ in range(1000):
        answers.ended(200)
    assert answers.left(0, 1000) == pytest.approx(200, abs=1)


@pytest.mark.parametrize("behind_s", [0.1, 1e6])
def test_a_prefill_is_never_starved(behind_s: float) -> None:
    """A batch without slack leaves a fifth of the time, and at least the floor's tokens."""
    late = DecodeProgress(0.030, -behind_s, 0)
    assert step_allowance(0.0, [late], STEP_S, LIMITS) == pytest.approx(0.0125)
    assert prefill_budget(0.0, [late], predict, LIMITS) == LIMITS.floor_tokens
    assert prefill_budget(0.0, [late], partial(predict, step_s=0.1), LIMITS) == 120
    assert prefill_budget(0.0, [late], lambda n: 1e9 * n, replace(LIMITS, floor_tokens=0)) == 1


targets = st.floats(1.5, 6.0).map(lambda factor: factor * STEP_S)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(targets, st.integers(0, 60)), min_size=1, max_size=6), st.integers(1, 4000))
def test_every_mean_stays_within_its_target_at_every_token(batch: list[tuple[float, int]], prompt: int) -> None:
    """Requests join at different steps, one prompt after the other is prefilled; longest gap: the burst."""
    now, done = 0.0, 0
    joined: list[tuple[float, float, int]] = []  # target, time and step of the first token
    for step in range(80):
        joined += [(target, now, step) for target, joins in batch if joins == step]
        running = [DecodeProgress(target, at, step - since) for target, at, since in joined]
        tokens = min(prefill_budget(now, running, predict, LIMITS), prompt - done)
        assert tokens > 0
        gap = predict(tokens)
        done, now = (done + tokens) % prompt, now + gap
        for r in running:
            assert now - r.first_at <= r.itl_target_s * (r.gaps + 1)
            assert gap <= LIMITS.burst * r.itl_target_s


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(targets, st.integers(0, 60), st.integers(2, 60)), min_size=1, max_size=6))
def test_every_mean_is_within_its_target_by_the_expected_end(batch: list[tuple[float, int, int]]) -> None:
    """Prompts never end; requests are given as many tokens as they were expected to have."""
    now = 0.0
    joined: list[tuple[float, float, int, int]] = []
    for step in range(120):
        joined += [(target, now, step, length) for target, joins, length in batch if joins == step]
        running = [
            DecodeProgress(target, at, step - since, length - (step - since))
            for target, at, since, length in joined
            if step - since < length
        ]
        now += predict(prefill_budget(now, running, predict, LIMITS))
        for r in running:
            if r.left == 1:
                assert now - r.first_at <= r.itl_target_s * (r.gaps + 1) * (1 + 1e-9)

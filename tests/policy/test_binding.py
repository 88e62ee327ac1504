from __future__ import annotations

from typing import Any

import pytest

from ampd.errors import NoWorkers, WorkerGone
from ampd.policy.binding import Rebinding, choose_decode, kv_room, rebind
from ampd.policy.types import ClusterView, Round, WorkerView


def decode(id: int, kv_free: int, theta: int = 1, **fields: Any) -> WorkerView:
    return WorkerView(
        id=id, role="decode", epoch="d", theta=theta, kv_total=fields.pop("kv_total", 10_000), kv_free=kv_free, **fields
    )


def chosen(*workers: WorkerView, tokens: int = 100) -> int:
    return choose_decode(ClusterView((), workers), tokens).id


def test_most_free_memory_wins() -> None:
    assert chosen(decode(1, 500), decode(2, 900), decode(3, 700)) == 2


def test_pinned_memory_is_in_use_and_promised_memory_is_spoken_for() -> None:
    assert chosen(decode(1, 600, kv_pinned=3000), decode(2, 500, kv_pinned=0)) == 1
    assert chosen(decode(1, 900, kv_promised=500), decode(2, 500)) == 2
    assert kv_room(decode(1, 100, kv_promised=300)) == -200


def test_ties_go_to_the_fewest_running_then_the_lowest_id() -> None:
    assert chosen(decode(3, 500, running=1), decode(2, 500, running=2), decode(1, 500, running=2)) == 3
    assert chosen(decode(3, 500, running=1), decode(2, 500, running=1)) == 2


def test_a_worker_that_can_never_hold_the_prompt_is_passed_over_while_another_can() -> None:
    small, full = decode(1, 900, kv_total=1000), decode(2, 100, kv_total=10_000)
    assert chosen(small, full, tokens=2000) == 2
    assert chosen(small, tokens=2000) == 1


def test_full_workers_still_take_sessions() -> None:
    assert chosen(decode(1, 0, kv_promised=9000), decode(2, 0, kv_promised=100)) == 2


def test_draining_workers_take_none() -> None:
    assert chosen(decode(1, 900, draining=True), decode(2, 100)) == 2
    for workers in ((), (decode(1, 900, draining=True),)):
        with pytest.raises(NoWorkers, match="no live decode worker"):
            choose_decode(ClusterView((), workers), 1)


class Steps:
    """A step takes 10 ms a sequence and 1 us a token; prefill 1 ms a new token, 0.1 ms a cached one; theta divides."""

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return (l_incr + 0.1 * l_hist) / 1000 / theta

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return (0.01 * batch + 0.000001 * context) / theta


def loaded(*workers: WorkerView, tokens: int = 100) -> int:
    return choose_decode(ClusterView((), workers), tokens, "predicted_load", Steps()).id  # type: ignore[arg-type]


def test_predicted_load_takes_the_worker_with_the_shortest_expected_step() -> None:
    many, few = decode(1, 9000, running=8, context=4000), decode(2, 3000, running=2, context=7000)
    assert chosen(many, few) == 1
    # The mean sequence has 1,100 tokens: 4,100 tokens are 4 sequences, 7,100 are 6.
    assert loaded(many, few) == 1
    assert loaded(decode(1, 9000, running=8, context=4000, theta=1), decode(2, 3000, running=8, context=4000, theta=2)) == 2


def test_predicted_load_counts_waiting_and_promised_sessions() -> None:
    running = decode(1, 5000, running=4, context=2000)
    assert loaded(running, decode(2, 4000, running=4, context=2000, kv_pinned=3000)) == 1
    assert loaded(running, decode(2, 9000, running=2, context=1000, kv_promised=3000)) == 1
    assert loaded(running, decode(2, 5000, running=0, kv_pinned=2000), decode(3, 4000)) == 3


def test_predicted_load_weighs_what_is_held_by_how_much_of_it_decodes() -> None:
    """A quarter of what the three hold decodes: 2,000 tokens count as 500, 1,000 as 250, but 800 promised ones in full."""
    workers = decode(1, 5000, running=4, context=2000), decode(2, 5000, running=2, context=1000, kv_promised=800)
    assert loaded(*workers) == 2
    assert loaded(*workers, decode(3, 100, kv_pinned=9000, draining=True)) == 1


def test_predicted_load_needs_room_and_falls_back_on_the_most_of_it() -> None:
    assert loaded(decode(1, 50), decode(2, 900, running=9, context=900)) == 2
    assert loaded(decode(1, 50), decode(2, 60, running=9, context=900)) == 2
    assert loaded(decode(1, 500), decode(2, 900)) == 2  # equally idle


def test_predicted_load_without_a_cost_model_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a cost model"):
        choose_decode(ClusterView((), [decode(1, 100)]), 10, "predicted_load")


BIG = 1_000_000


def moved(*workers: WorkerView, rule: Any = "when_cheaper", **fields: Any) -> Rebinding | None:
    placement = Round("s", 3, 1, fields.pop("l_hist", 1000), 100, 2.0, 0.1)
    return rebind(placement, ClusterView((), workers), Steps(), rule, **fields)  # type: ignore[arg-type]


def test_a_session_moves_when_what_it_saves_exceeds_the_price_of_its_history() -> None:
    # Price: T_pre(0, 1100) - T_pre(1000, 100) = 1.1 - 0.2 = 0.9 s.
    move = moved(decode(1, BIG, queued_s=1.0), decode(2, BIG), steps=0)
    assert move is not None
    assert (move.worker.id, move.cost_s, move.gain_s) == (2, pytest.approx(0.9), pytest.approx(1.0))
    assert moved(decode(1, BIG, queued_s=0.89), decode(2, BIG), steps=0) is None
    assert moved(decode(1, BIG, queued_s=0.89), decode(2, BIG), l_hist=900, steps=0) is not None


def test_steps_beside_a_smaller_batch_count_as_saved() -> None:
    # 100 steps of a batch of 3 instead of 2: 1 s.
    move = moved(decode(1, BIG, running=2), decode(2, BIG, running=1), steps=100)
    assert move is not None
    assert move.gain_s == pytest.approx(1.0)
    assert moved(decode(1, BIG, running=2), decode(2, BIG, running=1), steps=89) is None


def test_the_best_of_several_is_taken_and_full_or_draining_ones_are_not() -> None:
    workers = [decode(1, BIG, queued_s=9.0), decode(2, BIG, queued_s=3.0), decode(3, 1000), decode(4, BIG, draining=True)]
    move = moved(*workers, decode(5, BIG, queued_s=1.0))
    assert move is not None
    assert move.worker.id == 5


def test_by_default_no_session_moves() -> None:
    assert moved(decode(1, BIG, queued_s=99.0), decode(2, BIG), rule="never") is None


def test_a_session_whose_worker_is_gone_is_bound_anew_not_moved() -> None:
    with pytest.raises(WorkerGone):
        moved(decode(2, BIG))

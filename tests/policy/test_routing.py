"""Algorithm 1, line by line, and Equations 1 and 2."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ampd.errors import WorkerGone
from ampd.policy.placing import Router
from ampd.policy.routing import Paper
from ampd.policy.types import ClusterView, Decision, Direction, Round, WorkerView


class TableCosts:
    """Costs that can be checked by hand, different for every argument."""

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return (l_incr + 0.1 * l_hist) / theta

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return (0.01 * batch + 0.0001 * context) / theta

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return tokens * {"history": 0.01, "increment": 0.03}[direction] * theta_src / theta_dst


PAPER = Router(Paper(alpha=0.9, beta=0.85))
# alpha x target = 1.8 s, beta x target = 0.085 s
ROUND = Round("s", 2, decode=100, l_hist=200, l_incr=10, ttft_target_s=2.0, itl_target_s=0.1)


def prefill(id: int, ttft_s: float | None = 1.9, **fields: Any) -> WorkerView:
    return WorkerView(id=id, role="prefill", epoch="p", theta=fields.pop("theta", 1), ttft_s=ttft_s, **fields)


def decode(itl_s: float | None = 0.09, **fields: Any) -> WorkerView:
    return WorkerView(id=100, role="decode", epoch="d", theta=fields.pop("theta", 1), itl_s=itl_s, **fields)


def decide(prefills: Sequence[WorkerView], bound: WorkerView, seed: int = 0, **options: Any) -> Decision:
    view = ClusterView(prefills, [WorkerView(id=101, role="decode", epoch="x", theta=1), bound])
    return PAPER.route(options.pop("round", ROUND), view, TableCosts(), Random(seed), **options)


def test_lines_1_to_3_a_prefill_worker_with_slack_takes_it_even_when_local_is_idle() -> None:
    d = decide([prefill(1), prefill(2, 1.8), prefill(3, 1.81)], decode(0.0))
    assert (d.path, d.worker, d.reason) == ("remote", 2, "prefill_slack")


def test_slack_is_taken_up_in_random_order() -> None:
    workers = [prefill(i, 1.0) for i in range(4)]
    chosen = Counter(decide(workers, decode(), seed).worker for seed in range(4000))
    assert set(chosen) == {0, 1, 2, 3}
    assert all(850 < n < 1150 for n in chosen.values())


def test_lines_4_and_5_no_prefill_slack_and_a_calm_decode_worker_is_local() -> None:
    assert decide([prefill(1)], decode(0.085)).reason == "decode_slack"
    assert decide([prefill(1)], decode(0.0851)).reason.startswith("cost_")


def test_line_6_is_the_argmin_of_equations_1_and_2() -> None:
    busy = decode(queued_s=5.0, theta=2)
    d = decide([prefill(1, queued_s=9.0), prefill(2, queued_s=3.0, theta=4), prefill(3, queued_s=3.5, theta=4)], busy)
    t_pre_d, t_pre_4 = 30 / 2, 30 / 4
    kv_4 = 200 * 0.01 * 2 / 4 + 10 * 0.03 * 4 / 2
    assert d.estimates == pytest.approx(
        {
            "local": t_pre_d + 5.0,
            "remote:1": 30 + 200 * 0.01 * 2 / 1 + 10 * 0.03 * 1 / 2 + 9.0,
            "remote:2": t_pre_4 + kv_4 + 3.0,
            "remote:3": t_pre_4 + kv_4 + 3.5,
        }
    )
    assert (d.path, d.worker, d.reason) == ("remote", 2, "cost_remote")
    assert d.estimate_s == pytest.approx(t_pre_4)


def test_line_6_prefers_local_when_equation_1_is_the_smaller_or_equal() -> None:
    # Remote: 30 + 2 + 0.3 + 5 = 37.3 s, local: 30 + the decode worker's queue
    assert decide([prefill(1, queued_s=5.0)], decode(queued_s=7.2)).reason == "cost_local"
    assert decide([prefill(1, queued_s=5.0)], decode(queued_s=7.4)).reason == "cost_remote"
    nothing = Round("s", 1, 100, 0, 0, 2.0, 0.1)
    assert decide([prefill(1)], decode(), round=nothing).reason == "cost_local"


def test_equal_remote_candidates_share_the_load() -> None:
    workers = [prefill(i) for i in range(3)]
    assert {decide(workers, decode(queued_s=99.0), seed).worker for seed in range(60)} == {0, 1, 2}


def test_an_empty_ttft_window_counts_as_the_queue() -> None:
    assert decide([prefill(1, None)], decode()).reason == "prefill_slack"
    assert decide([prefill(1, None, queued_s=1.8)], decode()).reason == "prefill_slack"
    assert decide([prefill(1, None, queued_s=1.9)], decode()).reason != "prefill_slack"


def test_an_empty_itl_window_counts_as_the_step_time_of_the_running_batch() -> None:
    assert decide([prefill(1)], decode(None)).reason == "decode_slack"
    # 0.01 x 4 + 0.0001 x 400 = 0.08 s; one more running round makes it 0.09 s
    assert decide([prefill(1)], decode(None, running=4, context=400)).reason == "decode_slack"
    assert decide([prefill(1)], decode(None, running=5, context=400)).reason.startswith("cost_")


def test_draining_prefill_workers_get_nothing() -> None:
    d = decide([prefill(1, 0.0, draining=True)], decode(9.0))
    assert (d.path, d.reason, d.worker) == ("local", "only_local", 100)
    assert decide([prefill(1, 0.0, draining=True), prefill(2, 0.0)], decode()).worker == 2


@pytest.mark.parametrize(
    ("options", "prefills", "path", "reason"),
    [
        ({"forced": "local"}, [prefill(1, 0.0)], "local", "forced"),
        ({"forced": "remote"}, [prefill(1, 9.0)], "remote", "forced"),
        ({"forced": "remote"}, [], "local", "only_local"),
        ({"local_reason": "engine_needs_local"}, [prefill(1, 0.0)], "local", "engine_needs_local"),
        ({"local_reason": "engine_needs_local", "forced": "remote"}, [prefill(1, 0.0)], "local", "engine_needs_local"),
    ],
)
def test_overrides(options: dict[str, Any], prefills: list[WorkerView], path: str, reason: str) -> None:
    d = decide(prefills, decode(9.0), **options)
    assert (d.path, d.reason) == (path, reason)
    assert d.estimates["local"] == 30.0


def test_a_slack_decision_can_be_explained() -> None:
    d = decide([prefill(1, 0.0, queued_s=0.5), prefill(2)], decode())
    assert d.estimates == pytest.approx({"local": 30.0, "remote:1": 30 + 2 + 0.3 + 0.5})
    assert d.estimate_s == 30.0


def test_a_missing_decode_worker_is_an_error() -> None:
    with pytest.raises(WorkerGone, match="decode worker 100 of session s is not live"):
        PAPER.route(ROUND, ClusterView([prefill(1)], []), TableCosts(), Random(0))

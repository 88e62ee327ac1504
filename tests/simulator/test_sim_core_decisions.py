"""Decisions: what they see, that they are the policies' own, and that the same seed gives the same bytes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from sim_core_costs import NO_DELAYS, HandCosts, agents, chat, setup, single

from ampd.errors import ConfigError
from ampd.policy import baselines
from ampd.policy.placing import Case
from ampd.policy.types import Decision, WorkerView
from ampd.simulator.forms import COLOCATED, FORMS, setup_for
from ampd.simulator.simulate import Progress, assemble, simulate
from ampd.simulator.types import Delays, Group, Outcome, Setup, TraceRound, TraceSession

COSTS = HandCosts(history_s=1e-8, context_s=1e-6, moved_s=1e-5)


def same(one: Outcome, other: Outcome) -> bool:
    """To the byte."""
    columns = [f.name for f in fields(one.records)]
    equal = all(getattr(one.records, c).tobytes() == getattr(other.records, c).tobytes() for c in columns)
    return equal and one.counts == other.counts and one.busy_s == other.busy_s


@pytest.mark.parametrize("form", FORMS)
def test_every_form_serves_every_round_and_repeats_itself(form: str) -> None:
    sessions = agents(60, rate=1.5, seed=1)
    groups = (
        [Group("decode", 1, 4, 20_000)] if form in COLOCATED else [Group("prefill", 1, 2, 20_000), Group("decode", 1, 2, 20_000)]
    )
    here = setup_for(form, groups, 1.0, 0.1, coordinators=2)
    outcome = simulate(here, COSTS, sessions, seed=3)
    assert len(outcome.records) == sum(len(s.rounds) for s in sessions)
    assert not outcome.unfinished
    assert (outcome.records.ttft_s > 0).all()
    assert (np.diff(outcome.records.ended_s) >= 0).all()
    assert same(outcome, simulate(here, COSTS, sessions, seed=3))


def test_seeds_differ_where_policies_draw() -> None:
    sessions = agents(60, rate=1.5, seed=1)
    here = setup(4, 2, policy="paper")
    assert not same(simulate(here, COSTS, sessions, seed=1), simulate(here, COSTS, sessions, seed=2))


def test_coordinators_draw_from_generators_of_their_own() -> None:
    sessions = agents(60, rate=1.5, seed=1)
    one, three = (simulate(setup(4, 2, policy="paper", coordinators=n), COSTS, sessions) for n in (1, 3))
    assert not same(one, three)
    assert len(one.records) == len(three.records)


def seen(here: Setup, sessions: list[TraceSession], monkeypatch: pytest.MonkeyPatch, cost: HandCosts = COSTS) -> list[Case]:
    """The cases that policy `dynamo` decided, workers as they were then."""
    cases: list[Case] = []
    choose = baselines.Dynamo.choose

    def watched(policy: baselines.Dynamo, case: Case) -> Decision:
        cases.append(case)
        case.then = (list(case.view.prefill), list(case.view.decode))
        return choose(policy, case)

    class Watched(Case):
        __slots__ = ("then",)

    monkeypatch.setattr("ampd.policy.placing.Case", Watched)
    monkeypatch.setattr(baselines.Dynamo, "choose", watched)
    simulate(here, cost, sessions)
    return cases


def views(case: Any) -> tuple[list[WorkerView], list[WorkerView]]:
    return case.then


def test_queues_are_seen_at_once_and_batches_as_last_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long round decodes from 0.1 s on; one prefill worker computes the others' prompts of 0.5 s."""
    sessions = [single(100, 2000, 0.0, "long"), *[single(500, 1, at, f"at {at}") for at in (0.95, 0.96, 1.8)]]
    cases = seen(setup(1, 1, policy="dynamo"), sessions, monkeypatch)
    queued = [views(case)[0][0].queued_s for case in cases]
    running = [views(case)[1][0].running for case in cases]
    context = [views(case)[1][0].context for case in cases]
    assert queued[:3] == pytest.approx([0.0, 0.0, 0.5])
    assert running[1:3] == [1, 1]
    # The decode worker reported last before 0.95 s, up to half a second ago; its steps take 11 ms.
    assert 100 + 0.38 / 0.0115 < context[1] < 100 + 0.85 / 0.0109
    assert context[1] == context[2] < context[3]


def test_a_fresher_report_shows_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [single(100, 2000, 0.0, "long"), single(500, 1, 0.95, "late")]

    def context(report_s: float) -> int:
        with monkeypatch.context() as patch:
            delays = Delays(0.0, 0.0, report_s=report_s, changed_s=0.0)
            return views(seen(setup(1, 1, policy="dynamo", delays=delays), sessions, patch)[1])[1][0].context

    assert context(0.002) > context(0.7) + 10


def test_a_binding_is_promised_until_reports_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [single(1000, 50, 0.0, "a"), single(1000, 50, 0.01, "b"), single(1000, 50, 5.0, "c")]
    cases = seen(setup(1, 2, policy="dynamo"), sessions, monkeypatch)
    promised = [[w.kv_promised for w in views(case)[1]] for case in cases]
    assert promised == [[1050, 0], [1050, 1050], [1050, 0]]


def test_windows_hold_what_was_reported_in_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [single(300, 20, 0.0, "a"), single(300, 20, 3.0, "b"), single(300, 20, 30.0, "c")]
    cases = seen(setup(1, 1, policy="dynamo"), sessions, monkeypatch)
    windows = [(views(case)[0][0].ttft_s, views(case)[1][0].itl_s) for case in cases]
    assert windows[0] == (None, None) == windows[2]
    assert windows[1] == (pytest.approx(0.3 + 0.003 + 0.011, abs=1e-3), pytest.approx(0.0113, rel=0.02))


def test_prefill_workers_caches_are_believed_and_used() -> None:
    sessions = [chat("a", 0.0, [640, 64, 64], 32)]
    records = simulate(setup(1, 1, policy="dynamo"), COSTS, sessions).records
    assert records.prompt.tolist() == [640, 736, 832]
    assert records.held.tolist() == [0, 640, 736]  # the prompts before, in whole blocks
    assert records.l_hist.tolist() == [0, 640, 736]  # with the answers but for their last tokens: 671 and 767


def test_a_policy_change_shows_without_a_line_of_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = agents(40, rate=1.0, seed=5)
    before = simulate(setup(2, 2, policy="dynamo"), COSTS, sessions)
    assert set(before.records.path) == {1}

    def local_when_short(policy: baselines.Dynamo, case: Case) -> Decision:
        return policy.place(case, case.round.l_incr < 300, "short_increment", "always_remote")

    monkeypatch.setattr(baselines.Dynamo, "choose", local_when_short)
    after = simulate(setup(2, 2, policy="dynamo"), COSTS, sessions)
    assert (after.records.path == 0).sum() == after.counts["reason:short_increment"] > 0
    assert not same(before, after)


def test_the_chunk_rule_is_the_policys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = agents(40, rate=1.0, seed=5)
    here = setup(0, 2, policy="local_only")
    before = simulate(here, COSTS, sessions)
    monkeypatch.setattr("ampd.simulator.cluster.chunking.prefill_budget", lambda now, running, predict, limits: 16)
    assert simulate(here, COSTS, sessions).records.ttft_s.mean() > before.records.ttft_s.mean()


def test_orders_of_the_queue_are_the_policys_own() -> None:
    sessions = [
        single(2000, 1, 0.0, "blocker"),
        single(2000, 1, 0.001, "ahead"),
        single(2500, 1, 0.002, "long"),
        single(50, 1, 0.1, "short"),
    ]

    def first(name: str) -> list[int]:
        policy = {"name": "dynamo", "reorder": {"name": name}}
        records = simulate(setup(1, 1, policy=policy), HandCosts(), sessions).records
        return [int(s) for s in records.session]

    assert first("fcfs") == [0, 1, 2, 3]
    assert first("hrrn") == [0, 1, 3, 2]


def test_a_wrong_cost_model_misleads_decisions_and_nothing_else() -> None:
    sessions = agents(60, rate=1.5, seed=6)
    here = setup(2, 2, policy="predictive")
    right = simulate(here, COSTS, sessions)
    wrong = simulate(here, COSTS, sessions, believed=HandCosts(token_s=0.02, history_s=1e-8, context_s=1e-6, moved_s=1e-5))
    assert not same(right, wrong)
    forced = setup(2, 2, policy={"name": "dynamo", "force": ["local"]})
    assert same(simulate(forced, COSTS, sessions), simulate(forced, COSTS, sessions, believed=COSTS))


def test_what_has_not_ended_is_told() -> None:
    sessions = [single(100, 1000, 0.0, "long"), single(100, 2, 1.0, "short"), single(100, 2, 60.0, "never")]
    outcome = simulate(setup(1, 1, policy="dynamo"), COSTS, sessions, until_s=5.0)
    assert outcome.records.session.tolist() == [1]
    assert outcome.unfinished == [(0.0, 0, 1)]
    assert outcome.ended_s == 5.0


def test_a_simulation_can_be_stopped() -> None:
    asked: list[Progress] = []

    def stop(progress: Progress) -> bool:
        asked.append(progress)
        return progress.now >= 20.0

    outcome = simulate(setup(1, 1, policy="dynamo", ttft_s=0.01), COSTS, agents(200, 1.0, 7), stop=stop)
    assert [p.now for p in asked] == [10.0, 20.0]
    assert outcome.ended_s == 20.0
    assert asked[1].ended == (outcome.records.ended_s <= 20.0).sum()
    assert asked[1].late == (outcome.records.ttft_s > 0.1).sum() > 0
    assert asked[1].open == len(outcome.unfinished)


@pytest.mark.parametrize(
    ("changes", "rounds", "line"),
    [
        ({}, [(0, 0, 5, 0.0)], "session a, round 1: prompt = 0, output = 5 tokens"),
        ({}, [(9, 0, 5, 0.0), (20, 9, 0, 1.0)], "session a, round 2: prompt = 20, output = 0 tokens"),
        ({}, [(9, 0, 5, 0.0), (20, 21, 5, 1.0)], "session a, round 2: history = 21 tokens; must be from 0 to the prompt's 20"),
        ({}, [(9, 0, 5, 0.0), (20, 9, 5, -1.0)], "session a, round 2: gap_s = -1.0; must be 0 seconds or more"),
        ({"kv": 64}, [(50, 0, 20, 0.0)], "session a, round 1: prompt + output = 50 + 20 tokens do not fit into"),
        ({"decode": 0}, [(9, 0, 5, 0.0)], "groups: there is no decode worker"),
        ({"kv": -5}, [(9, 0, 5, 0.0)], "groups[0].kv_tokens = -5: must be at least 32; the model leaves no room"),
        ({"itl_s": 0.0}, [(9, 0, 5, 0.0)], "itl_s = 0.0: must be above 0 seconds"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_in_one_line(changes: dict[str, Any], rounds: list[tuple[Any, ...]], line: str) -> None:
    sessions = [TraceSession("a", tuple(TraceRound(*r) for r in rounds))]
    with pytest.raises(ConfigError) as caught:
        simulate(setup(**changes), COSTS, sessions)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_unsorted_sessions_and_unknown_forms_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"session b: arrives_s = 1.0 comes after one of 2.0"):
        simulate(setup(), COSTS, [single(9, 1, 2.0, "a"), single(9, 1, 1.0, "b")])
    with pytest.raises(ConfigError, match="there is no such form"):
        setup_for("magic", [], 1.0, 0.1)
    with pytest.raises(ConfigError, match="colocated, but the deployment has prefill workers"):
        setup_for("vllm", [Group("prefill", 1, 1, 1000)], 1.0, 0.1)


def test_the_timeline_shows_where_a_round_was() -> None:
    spans: list[tuple[Any, ...]] = []

    class Sink:
        def span(self, *span: Any) -> None:
            spans.append(span[:5])

    sessions = [chat("a", 0.0, [320, 64], 11)]
    simulate(setup(1, 1, policy="dynamo", delays=NO_DELAYS), HandCosts(moved_s=1e-4), sessions, sink=Sink())
    lanes = [(worker, lane, name, round(end - begin, 6)) for worker, lane, name, begin, end in spans if name == "a round 1"]
    assert lanes == [(0, "prefill", "a round 1", 0.32), (1, "read", "a round 1", 0.032), (1, "decode", "a round 1", 0.11)]


def test_idle_time_costs_no_events() -> None:
    sessions = [single(100, 10, 0.0, "a"), single(100, 10, 1e6, "b")]
    world, _ = assemble(setup(8, 8), COSTS, sessions)
    world.loop.run()
    assert world.loop.events < 400

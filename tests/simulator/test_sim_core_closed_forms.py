"""Where queueing theory or arithmetic has the answer, the simulator gives it."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from sim_core_costs import HandCosts, setup, single

from ampd.simulator.cluster.link import Network
from ampd.simulator.cluster.loop import Loop
from ampd.simulator.simulate import simulate
from ampd.simulator.types import TraceSession

# A decode step of next to nothing: what is left of TTFT is waiting and service.
ONLY_PREFILL = HandCosts(step_s=1e-9, sequence_s=0.0)


def poisson(count: int, rate: float, lengths: Any, seed: int) -> list[TraceSession]:
    rng, at, sessions = Random(seed), 0.0, []
    for i in range(count):
        at += rng.expovariate(rate)
        sessions.append(single(lengths(rng), 1, at, f"s{i}"))
    return sessions


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_waiting_at_one_prefill_worker_is_that_of_m_d_1(load: float) -> None:
    service_s = 0.1
    sessions = poisson(8_000, load / service_s, lambda rng: 100, seed=1)
    records = simulate(setup(policy={"name": "dynamo", "reorder": {"name": "fcfs"}}), ONLY_PREFILL, sessions).records
    waited = records.ttft_s.mean() - service_s
    assert waited == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.08)


def test_waiting_at_one_prefill_worker_is_that_of_m_g_1() -> None:
    """Pollaczek and Khinchine: lambda E[S^2] / (2 (1 - rho)); services are 20 ms or 200 ms."""
    load, short, long, share = 0.7, 20, 200, 0.2
    mean_s = ((1 - share) * short + share * long) / 1000
    square = ((1 - share) * short**2 + share * long**2) / 1e6
    sessions = poisson(10_000, load / mean_s, lambda rng: long if rng.random() < share else short, seed=2)
    records = simulate(setup(policy={"name": "dynamo", "reorder": {"name": "fcfs"}}), ONLY_PREFILL, sessions).records
    waited = (records.ttft_s - records.prompt / 1000).mean()
    assert waited == pytest.approx(load / mean_s * square / (2 * (1 - load)), rel=0.08)


def test_a_saturated_decode_worker_gives_batch_over_t_dec() -> None:
    cost = HandCosts(token_s=1e-7, context_s=1e-6)
    most, output, prompt = 8, 400, 64
    sessions = [single(prompt, output, 0.0, f"s{i}") for i in range(160)]
    outcome = simulate(setup(0, 1, policy={"name": "local_only", "local_prefill": "chunked"}, most=most), cost, sessions)
    tokens = outcome.records.output.sum()
    step_s = cost.t_dec(most, most * (prompt + output // 2), 1)
    assert tokens / outcome.ended_s == pytest.approx(most / step_s, rel=0.01)
    assert outcome.busy_s[0] == pytest.approx(outcome.ended_s, rel=1e-3)


def ends(*transfers: tuple[float, int, int, float]) -> list[float]:
    """When transfers (begins, from, to, seconds of work) end."""
    loop = Loop()
    network = Network(loop, 4)
    found = [float("nan")] * len(transfers)

    def over(now: float, event: tuple[int, float]) -> None:
        found[event[0]] = now
        assert event[1] == pytest.approx(now - transfers[event[0]][0])

    for i, (at, src, dst, seconds) in enumerate(transfers):
        loop.at(at, lambda now, arg: network.start(now, arg[1], arg[2], arg[3], over, arg[0]), (i, src, dst, seconds))
    loop.run()
    assert [network.owed_s(worker, loop.now) for worker in range(4)] == [0, 0, 0, 0]
    return found


def test_two_transfers_share_a_link() -> None:
    assert ends((0.0, 0, 1, 1.0), (0.5, 2, 1, 1.0)) == pytest.approx([1.5, 2.0])
    assert ends((0.0, 0, 1, 1.0), (0.5, 2, 3, 1.0)) == pytest.approx([1.0, 1.5])  # nothing in common


def test_three_transfers_go_at_the_least_share_of_both_ends() -> None:
    # Three at link 0 until the first is over at 0.9; then two, of which 0.7 and 0.9 are left.
    assert ends((0.0, 0, 1, 0.3), (0.0, 0, 2, 1.0), (0.0, 3, 0, 1.2)) == pytest.approx([0.9, 2.3, 2.5])
    # 0->1 has two beside it in all, one at each end: it goes at a half, like them.
    assert ends((0.0, 0, 1, 1.0), (0.0, 0, 2, 0.5), (0.0, 3, 1, 0.75)) == pytest.approx([1.75, 1.0, 1.5])


def test_a_poisson_mix_of_transfers_on_one_link_is_processor_sharing() -> None:
    """M/G/1 processor sharing: a transfer of x takes x / (1 - rho) on average, whatever the others' lengths."""
    rng, load, at, transfers = Random(3), 0.6, 0.0, []
    for _ in range(20_000):
        at += rng.expovariate(load)
        transfers.append((at, 0, 1, 0.5 if rng.random() < 2 / 3 else 2.0))
    took = np.array(ends(*transfers)) - np.array([t[0] for t in transfers])
    work = np.array([t[3] for t in transfers])
    for seconds in (0.5, 2.0):
        assert took[work == seconds].mean() == pytest.approx(seconds / (1 - load), rel=0.08)

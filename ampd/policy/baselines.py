"""The peers' rules, to compare with, and the two extremes.

Each is its source's rule on ampd's view; `docs/policies.md` says where a signal differs.

Remote prefills go where Dynamo's KV router would send them: to the prefill worker with the least prefill work waiting plus this
prompt's own less what the worker's cache holds (docs.nvidia.com/dynamo, router concepts: cost = prefill blocks + active blocks, the
latter being off for prefill workers); equals are chosen among at random.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampd.policy.placing import ByTheta, Case, Estimates, least, named
from ampd.policy.settings import ConditionalDisaggSettings
from ampd.policy.types import Decision, Reason, WorkerView


class _Baseline:
    """What the baselines share: how a decision is written down, and which prefill worker is the best."""

    __slots__ = ()

    def local(self, case: Case, reason: Reason) -> Decision:
        round, decode = case.round, case.decode
        prefill = decode.t_pre_factor * case.cost.t_pre(round.l_hist, round.l_incr, decode.theta)
        return Decision("local", decode.id, reason, prefill, {"local": prefill + decode.queued_s})

    def remote(self, case: Case, reason: Reason) -> Decision | None:
        if not case.prefill:
            return None
        seconds = _waits(case)
        return self.on(case, least(case.prefill, seconds, case.rng), reason, seconds)

    def on(self, case: Case, worker: WorkerView, reason: Reason, seconds: list[float]) -> Decision:
        round = case.round
        reused = min(max(round.l_hist, round.held.get(worker.id, 0)), round.l_hist + round.l_incr - 1)
        prefill = worker.t_pre_factor * case.cost.t_pre(reused, round.l_hist + round.l_incr - reused, worker.theta)
        return Decision("remote", worker.id, reason, prefill, Estimates(lambda: named(case.prefill, seconds)))

    def place(self, case: Case, bypass: bool, local: Reason, remote: Reason) -> Decision:
        """Local when `bypass`, else remote; local as well when there is no prefill worker."""
        if bypass:
            return self.local(case, local)
        placed = self.remote(case, remote)
        return placed if placed is not None else self.local(case, "only_local")


class Dynamo(_Baseline):
    """`dynamo`: plain disaggregation as Dynamo's PrefillRouter does it; every prefill is remote (docs/components/router)."""

    __slots__ = ()

    def choose(self, case: Case) -> Decision:
        return self.place(case, False, "always_local", "always_remote")


class LocalOnly(_Baseline):
    """`local_only`: every prefill on the bound decode worker, as aggregated vLLM workers with session affinity do it."""

    __slots__ = ()

    def choose(self, case: Case) -> Decision:
        return self.local(case, "always_local")


@dataclass(frozen=True, slots=True)
class Ppd(_Baseline):
    """`ppd`: turn 1 is remote; later ones with fewer than `bypass_threshold` new tokens are local.

    Source: PPD, arXiv 2603.13358, and github.com/freelulul/vllm-ppd, README, "PPD Decision Engine": rule 1, `PPD_BYPASS_THRESHOLD`.
    Its further rules score the round by a table of benchmarks, which another cluster does not have; longer turns are remote here.
    """

    bypass_threshold: int

    def choose(self, case: Case) -> Decision:
        if case.round.number <= 1:
            return self.place(case, False, "short_increment", "first_round")
        return self.place(case, case.round.l_incr < self.bypass_threshold, "short_increment", "long_increment")


@dataclass(frozen=True, slots=True)
class PrefixDecider(_Baseline):
    """`prefix_decider`: remote from `threshold` tokens on that the decode worker does not hold; 0 turns remote prefills off.

    A prompt of fewer than `prompt` tokens is local whatever of it is held; 0 turns that guard off.

    Source: github.com/llm-d/llm-d-router, plugin `prefix-based-pd-decider` (prefix_based_pd_decider.go, `disaggregate`),
    parameters nonCachedTokens and, since pull request 933, promptTokens (its meaning at the edge: pull request 2335).
    """

    threshold: int
    prompt: int = 0

    def choose(self, case: Case) -> Decision:
        round = case.round
        bypass = self.threshold == 0 or round.l_incr < self.threshold or round.l_hist + round.l_incr < self.prompt
        return self.place(case, bypass, "short_increment", "long_increment")


@dataclass(frozen=True, slots=True)
class ConditionalDisagg(_Baseline):
    """`conditional_disagg`: Dynamo's conditional disaggregation.

    Source: github.com/ai-dynamo/dynamo, lib/kv-router/src/conditional_disagg.rs (policies), its prefill router (both busy lines);
    docs.nvidia.com/dynamo, "Conditional Disaggregation"; keys and defaults as in ai-dynamo 1.6.1,
    dynamo/common/configuration/groups/kv_router_args.py. Effective ISL is what the bound decode worker does not hold: `l_incr`.
    """

    settings: ConditionalDisaggSettings

    def choose(self, case: Case) -> Decision:
        seconds = _waits(case)
        best = least(case.prefill, seconds, case.rng) if case.prefill else None
        reason = self._bypass(case, best)
        if best is None:
            return self.local(case, "only_local")
        if reason is None:
            return self.on(case, best, "not_bypassed", seconds)
        return self.on(case, best, "decode_busy", seconds) if self._decode_busy(case) else self.local(case, reason)

    def _bypass(self, case: Case, best: WorkerView | None) -> Reason | None:
        """Why the round skips the remote prefill; None when it does not."""
        policy = self.settings.policy
        if policy != "prefill_load" and self._small(case):
            return "isl_bounded"
        if policy != "isl_bounding" and best is not None and self._prefill_busy(case, best):
            return "prefill_busy"
        return None

    def _small(self, case: Case) -> bool:
        new, prompt = case.round.l_incr, case.round.l_hist + case.round.l_incr
        return new < self.settings.eff_isl_threshold and new / max(prompt, 1) < self.settings.eff_isl_ratio_threshold

    def _prefill_busy(self, case: Case, worker: WorkerView) -> bool:
        """More prefill waits there than the threshold's share of a full step; in seconds, as ampd's queues count."""
        threshold, full_step = self.settings.prefill_busy_threshold, self.settings.max_num_batched_tokens
        if threshold is None:
            return False
        return worker.queued_s > threshold * worker.t_pre_factor * case.cost.t_pre(0, full_step, worker.theta)

    def _decode_busy(self, case: Case) -> bool:
        """With this prompt the batch would attend to more than the threshold's share of the pool. An unknown pool, 0, is busy."""
        threshold, decode = self.settings.decode_busy_threshold, case.decode
        projected = decode.context + case.round.l_hist + case.round.l_incr
        return threshold is not None and projected > threshold * decode.kv_total


def _waits(case: Case) -> list[float]:
    """Seconds of prefill on each prefill worker with this prompt added, what the worker's own cache holds left out."""
    round, cost = case.round, case.cost
    prompt = round.l_hist + round.l_incr
    whole = ByTheta(lambda theta: cost.t_pre(0, prompt, theta))
    waits = [w.queued_s + w.t_pre_factor * whole[w.theta] for w in case.prefill]
    if round.held:
        for i, worker in enumerate(case.prefill):
            if held := min(round.held.get(worker.id, 0), prompt - 1):
                waits[i] = worker.queued_s + worker.t_pre_factor * cost.t_pre(held, prompt - held, worker.theta)
    return waits

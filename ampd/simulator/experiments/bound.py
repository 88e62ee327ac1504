"""An upper bound on the session rate that some GPUs sustain for a load, whatever the deployment and the policy.

By duality. Let every prefilled token be worth `prefill` GPU-seconds, every decoded token `decode` (`late` in a round that misses
its targets), and every token of KV that a decoded token attends to `context`. The prices are such that no engine step is worth more
than the GPU-seconds it takes, for any tensor-parallel degree, batch, context and chunk:

    decode * b + context * kv + prefill * c  <=  theta * t + patience * b * (t - T)       b sequences of attained rounds
    late   * b + context * kv + prefill * c  <=  theta * t                                b sequences of rounds that miss

where t is the step's time and T the ITL target. Summed over all steps of a long run the last term is not above 0, since the steps
of an attained round take T on average at most; so the work of the sessions, at these prices, is at most the GPU-seconds there are:

    rate * (value of a session)  <=  GPUs

That holds for every `patience` >= 0 and every ratio of the prices; the best of a grid is taken. Both constraints are linear in how
many of the batch are attained rounds, so mixtures satisfy them too. One round in ten may miss, and is chosen so that the bound is
the least. Waiting, transfers, recomputation and the TTFT target cost nothing here.

Step times are the simulator's: T_pre without a batch, the larger of T_dec and T_mixed with one. What the tokens of one chunk attend
to among themselves is left out, since several prompts may share it; what they attend to of their history is added by the round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampd.cost_model.arrays import ArrayCostModel
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.simulator.experiments.load import Load
from ampd.simulator.types import Floats

MISSES = 0.1  # of the rounds
# Batches and chunks between the grid's points: the functions are linear or nearly so there.
ALLOWANCE = 1.005
_PATIENCE = (0.0, *np.geomspace(1e-3, 20.0, 18).tolist())
_RATIOS = (0.0, *np.geomspace(0.01, 50.0, 36).tolist())  # of the price of a prefilled token to that of a decoded one


@dataclass(frozen=True, slots=True)
class Prices:
    """GPU-seconds; see above. `history`: of a pair of a prefilled token and a token of its history."""

    prefill: float
    decode: float
    late: float
    context: float
    history: float


@dataclass(frozen=True, slots=True)
class _Steps:
    """Kinds of step, one row each; `gpu_s` is theta x seconds."""

    batch: Floats
    context: Floats
    chunk: Floats
    seconds: Floats
    gpu_s: Floats


def bound_rate(
    load: Load,
    cost: PiecewiseCostModel,
    capacity: dict[int, int],
    gpus: int,
    itl_s: float,
    max_running: int = 256,
    chunk: int = 8192,
) -> float:
    """Sessions a second that `gpus` GPUs sustain at most with 90 % of the rounds within their ITL target `itl_s`.

    `capacity`: KV tokens of a worker by feasible theta; `chunk`: the most tokens of prefill in a step beside a batch.
    """
    return ALLOWANCE * gpus / max(_value(load, prices) for prices in _all_prices(load, cost, capacity, itl_s, max_running, chunk))


def _all_prices(
    load: Load, cost: PiecewiseCostModel, capacity: dict[int, int], itl_s: float, max_running: int, chunk: int
) -> list[Prices]:
    model = ArrayCostModel(cost)
    steps = [_steps_of(model, theta, tokens, load, max_running, chunk) for theta, tokens in sorted(capacity.items())]
    together = _Steps(*(np.concatenate([getattr(s, name) for s in steps]) for name in _Steps.__slots__))
    busy = together.batch > 0
    fits = [f for theta in capacity for f in (cost.decode[theta], cost.mixed.get(theta)) if f is not None]
    context = min(fit.theta * fit.context_token_s for fit in fits)  # a dearer one would leave nothing for the sequences
    history = min(_history_price(model, theta, max(chunk, int(load.increment.max()))) for theta in capacity)
    rest = together.gpu_s - context * together.context
    found = [Prices(0.0, 0.0, 0.0, 0.0, 0.0)]
    for patience in _PATIENCE:
        attained = rest + patience * together.batch * (together.seconds - itl_s)
        for ratio in _RATIOS:
            worth = together.batch + ratio * together.chunk
            decode = float((attained[worth > 0] / worth[worth > 0]).min())
            if decode <= 0:
                continue
            prefill = ratio * decode
            late = float(((rest - prefill * together.chunk)[busy] / together.batch[busy]).min())
            found.append(Prices(prefill, decode, min(late, decode), context, history))
    return found


def _steps_of(model: ArrayCostModel, theta: int, kv: int, load: Load, max_running: int, chunk: int) -> _Steps:
    """A grid of steps of a worker of `theta` with `kv` tokens of KV."""
    batches = np.unique(np.concatenate((np.arange(1, 33), np.arange(36, max_running + 1, 4), [max_running])))
    chunks = np.unique(np.concatenate(([0], np.arange(8, 1025, 24), np.geomspace(1024, chunk, 24).astype(int), [chunk])))
    least, most = int(load.prompt.min()), load.longest
    rows = []
    batches = batches[batches * least <= kv]
    for share in (0.0, 0.25, 1.0):
        contexts = (batches * (least + share * (np.minimum(most, kv / batches) - least))).astype(np.int64)
        rows.append(np.stack(np.broadcast_arrays(batches[:, None], contexts[:, None], chunks[None, :]), -1).reshape(-1, 3))
    b, ctx, c = np.concatenate(rows).T
    alone = np.unique(np.concatenate((chunks[1:], np.geomspace(1, max(chunk, int(load.prompt.max())), 64).astype(int))))
    itself = _among_themselves(model, theta, c)
    mixed = np.maximum(model.t_mixed(b, ctx, c, theta) - itself, model.t_dec(b, ctx, theta))
    first = model.t_pre(0, alone, theta) - _among_themselves(model, theta, alone)
    nothing = np.zeros(len(alone))
    seconds = np.concatenate((mixed, first))
    return _Steps(
        np.concatenate((b, nothing)), np.concatenate((ctx, nothing)), np.concatenate((c, alone)), seconds, theta * seconds
    )


_FAR = 65536


def _among_themselves(model: ArrayCostModel, theta: int, chunk: Floats) -> Floats:
    """At most what the tokens of a chunk cost by attending to each other."""
    pair = (model.t_pre(_FAR, chunk, theta) - model.t_pre(0, chunk, theta)) / _FAR  # of each token of history
    return pair * chunk / 2


def _history_price(model: ArrayCostModel, theta: int, most: int) -> float:
    """The least GPU-seconds of a new token's attending to a token of history, over all chunks."""
    chunks = np.unique(np.geomspace(1, most, 200).astype(int))
    return float(theta * ((model.t_pre(_FAR, chunks, theta) - model.t_pre(0, chunks, theta)) / (_FAR * chunks)).min())


def _value(load: Load, prices: Prices) -> float:
    """GPU-seconds of a session, with the rounds that miss chosen to make it the least."""
    steps = load.steps
    total = prices.prefill * load.increment.sum() + prices.history * (load.history * load.increment).sum()
    total += (steps * (prices.decode + prices.context * (load.prompt + steps / 2))).sum()
    misses = int(MISSES * len(steps))
    spared = np.partition(steps, len(steps) - misses)[len(steps) - misses :].sum() if misses else 0
    return float(total - spared * (prices.decode - prices.late)) / load.sessions

